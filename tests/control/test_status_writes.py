"""How often a status is written: at most once a transition, whoever answers how fast."""

from datetime import timedelta
from itertools import cycle

import pytest

from supervisor_middleware.control.status_writer import PENDING_GRACE
from supervisor_middleware.distribution.ledger import State, View
from supervisor_middleware.model.verdict import Described
from tests.builders import REDACTOR, a_binding, a_manifest, a_policy, a_registration, a_sandbox, an_entry_spec
from tests.fakes.control import DOWN, Control, FakeWorld, a_control

POLICY, CODER = "uid-of-team-a-redaction", "uid-of-team-a-coder"


async def a_settled() -> Control:
    control = a_control(FakeWorld(registrations=[a_registration()], sandboxes=[a_sandbox()]))
    control.distributor.connected.add(CODER)
    await control.settle()
    await control.later(2)
    control.world.acts.clear()
    return control


def writes(control: Control, name: str = "redaction") -> int:
    return control.world.acts.count(f"status {name}")


@pytest.mark.parametrize("binding", [REDACTOR, "openshell/regex"])
async def test_from_apply_to_programmed_takes_two_writes(binding: str) -> None:
    control = await a_settled()
    control.world.put(a_policy(middleware=binding))
    await control.settle()
    await control.settle()
    assert control.world.condition(POLICY, "Ready") == ("True", "Ready")
    assert control.world.condition(POLICY, "Programmed") == ("True", "Programmed")
    assert writes(control) == 2


async def test_without_sandboxes_it_takes_one() -> None:
    control = await a_settled()
    control.world.sandboxes.clear()
    control.world.put(a_policy())
    await control.settle()
    assert control.world.condition(POLICY, "Programmed") == ("True", "NoSandboxes")
    assert writes(control) == 1


async def test_a_policy_before_its_registration_takes_one_for_each_thing_it_becomes() -> None:
    control = a_control(FakeWorld(policies=[a_policy()]))
    await control.settle()
    assert control.world.condition(POLICY, "Ready") == ("False", "BindingNotFound")
    assert control.world.condition(POLICY, "Reconciling")[0] == "True"
    control.world.put(a_registration())
    await control.settle()
    assert control.world.condition(POLICY, "Ready") == ("True", "Ready")
    assert writes(control) == 2
    assert writes(control, "acme") <= 2


async def test_answers_that_take_long_are_waited_for_in_public() -> None:
    control = await a_settled()
    control.asker.delay = 60.0
    control.world.put(a_policy())
    await control.reconciler.reconcile()
    assert writes(control) == 0
    assert control.reconciler._next_due() == control.time + PENDING_GRACE
    control.time += PENDING_GRACE
    await control.reconciler.reconcile()
    assert writes(control) == 1
    assert control.world.condition(POLICY, "Ready") == ("Unknown", "Pending")
    assert control.world.condition(POLICY, "Reconciling") == ("True", "Pending")
    control.reconciler._inquiries.cancel()


async def test_each_edit_has_its_own_grace() -> None:
    control = await a_settled()
    control.asker.delay = 60.0
    for number in range(3):
        control.time += PENDING_GRACE / 2
        control.world.put(a_policy(config={"n": number}))
        await control.reconciler.reconcile()
    assert writes(control) == 0
    control.reconciler._inquiries.cancel()


async def test_a_flood_of_reports_is_two_writes_a_second_at_most() -> None:
    control = a_control(
        FakeWorld(
            registrations=[a_registration()],
            policies=[a_policy()],
            sandboxes=[a_sandbox(f"agent-{n}") for n in range(50)],
        )
    )
    await control.settle()
    await control.later(2)
    control.world.acts.clear()
    for number in range(50):
        control.distributor.connected.add(f"uid-of-team-a-agent-{number}")
        control.time += timedelta(milliseconds=20)
        await control.settle()
        await control.settle()
    assert control.world.condition(POLICY, "Programmed") == ("True", "Programmed")
    assert writes(control) <= 6


async def test_a_supervisor_that_changes_its_mind_all_the_time_is_a_write_a_second_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    control = await a_settled()
    control.world.put(a_policy())
    minds = cycle((State.PREPARED, State.WAITING))
    standing = {"state": next(minds)}

    def view(_key: str, digest: str) -> View:
        return View(is_connected=True, state=standing["state"], is_active=False)

    monkeypatch.setattr(control.distributor, "view", view)
    reasons = set[str]()
    control.world.acts.clear()
    for _ in range(50):
        standing["state"] = next(minds)
        control.time += timedelta(milliseconds=100)
        await control.reconciler.reconcile()
        reasons.add(control.world.condition(POLICY, "Programmed")[1])
    assert {"Progressing", "Waiting"} <= reasons
    assert writes(control) <= 8


async def test_a_service_that_comes_and_goes_is_written_once_each_way() -> None:
    control = await a_settled()
    for _ in range(3):
        control.asker.descriptions["acme"] = DOWN
        await control.later(61)
        control.asker.descriptions["acme"] = Described(a_manifest())
        await control.later(61)
    assert writes(control, "acme") == 6
    assert control.world.notices.count(("acme", "Accepted")) == 1


async def test_hundreds_of_policies_are_written_once_each() -> None:
    world = FakeWorld(registrations=[a_registration()])
    control = a_control(world)
    await control.settle()
    world.acts.clear()
    for number in range(300):
        entries = {"redact": an_entry_spec(order=number % 7)}
        world.put(a_policy(f"p{number}", namespace=f"team-{number}", entries=entries))
        world.namespaces[f"team-{number}"] = {}
    await control.settle()
    assert sorted(a for a in world.acts if a.startswith("status p")) == sorted(f"status p{n}" for n in range(300))


async def test_those_in_the_way_are_named_a_few_and_in_order() -> None:
    names = [f"agent-{n}" for n in range(9)]
    control = a_control(
        FakeWorld(
            registrations=[a_registration()], policies=[a_policy()], sandboxes=[a_sandbox(n) for n in reversed(names)]
        )
    )
    control.distributor.connected.add("uid-of-team-a-agent-0")
    await control.settle()
    (programmed,) = [c for c in control.world.status(POLICY)["conditions"] if c["type"] == "Programmed"]
    assert programmed["reason"] == "NotConnected"
    shown = ", ".join(f"team-a/agent-{n}" for n in range(1, 6))
    assert programmed["message"].endswith(f"not connected: {shown} and 3 more")


async def test_a_described_service_with_more_bindings_is_written_once() -> None:
    control = await a_settled()
    control.asker.descriptions["acme"] = Described(a_manifest(a_binding(), a_binding("acme/new")))
    for _ in range(3):
        await control.later(61)
    assert writes(control, "acme") == 1
    assert control.world.notices[-1:] == [("acme", "Drifted")]

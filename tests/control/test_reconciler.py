"""The control loop over a cluster in memory: what becomes true, in which order, and what never moves anything."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from supervisor_middleware.control.status_writer import PENDING_GRACE
from supervisor_middleware.errors import Bug, Unavailable
from supervisor_middleware.model.settings import TransportPhase
from supervisor_middleware.model.snapshot import Stored, StoredRevision
from supervisor_middleware.model.verdict import Described, Rejected
from tests.builders import (
    REDACTOR,
    a_baseline,
    a_binding,
    a_manifest,
    a_policy,
    a_registration,
    a_revision,
    a_sandbox,
    an_entry_spec,
    some_settings,
)
from tests.fakes.control import DOWN, Control, FakeAsker, FakeWorld, a_control

POLICY, CODER = "uid-of-team-a-redaction", "uid-of-team-a-coder"


def a_world() -> FakeWorld:
    return FakeWorld(registrations=[a_registration()], policies=[a_policy()], sandboxes=[a_sandbox()])


async def a_settled() -> Control:
    """A policy that is accepted and runs."""
    control = a_control(a_world())
    control.distributor.connected.add(CODER)
    await control.settle()
    control.world.acts.clear()
    control.world.notices.clear()
    return control


def an_edit(number: int = 0) -> Stored:
    """The policy with another config."""
    return a_policy(config={"pattern": "canary", "n": number})


class Seen(dict[str, Any]):
    """A mapping that knows in which threads it was read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.threads = set[int]()

    def get(self, key: str, default: Any = None) -> Any:
        self.threads.add(threading.get_ident())
        return super().get(key, default)


# ------------------------------------------------------------------------------------------------------- commit order


async def test_a_revision_is_saved_then_named_then_offered() -> None:
    control = a_control(a_world())
    await control.settle()
    acts = control.world.acts
    assert acts.index(f"save {POLICY}-1") < acts.index("status redaction", acts.index(f"save {POLICY}-1"))
    assert control.distributor.stages("coder") == ["redact"]
    assert acts[-3:] == [f"save {POLICY}-1", "status redaction", "publish"]
    assert control.world.status(POLICY)["accepted"] == {
        "revision": 1,
        "epoch": 7,
        "generation": 1,
        "digest": control.world.revisions[f"{POLICY}-1"].digest,
    }


async def test_what_could_not_be_named_is_not_offered() -> None:
    control = await a_settled()
    before = control.distributor.generations
    control.world.put(an_edit())
    control.world.fail = lambda act: Unavailable("conflict") if act == "status redaction" else None
    await control.settle()
    assert f"{POLICY}-2" in control.world.revisions
    assert control.distributor.generations == before
    assert control.world.status(POLICY)["accepted"]["revision"] == 1
    control.world.fail = lambda _: None
    await control.settle()
    assert control.world.status(POLICY)["accepted"]["revision"] == 2
    assert control.distributor.generations != before


async def test_what_could_not_be_saved_is_not_named() -> None:
    control = await a_settled()
    before = control.distributor.generations
    control.world.put(an_edit())
    control.world.fail = lambda act: Unavailable("quota") if act.startswith("save") else None
    await control.settle()
    assert control.distributor.generations == before
    assert control.world.status(POLICY)["accepted"]["revision"] == 1
    await control.later(0.5)
    assert control.world.condition(POLICY, "Accepted") == ("Unknown", "Pending")


async def test_one_policy_that_cannot_be_kept_holds_back_no_other() -> None:
    world = a_world()
    world.put(a_policy("other", key="other", order=1))
    control = a_control(world)
    world.fail = lambda act: Unavailable("conflict") if act == "status redaction" else None
    await control.settle()
    assert control.distributor.stages("coder") == ["redact (NeverAccepted)", "other"]


async def test_a_registration_counts_once_it_is_written() -> None:
    control = a_control(a_world())
    control.world.fail = lambda act: Unavailable("conflict") if act == "status acme" else None
    await control.settle()
    assert control.distributor.stages("coder") == ["redact (NeverAccepted)"]
    control.world.fail = lambda _: None
    await control.settle()
    assert control.distributor.stages("coder") == ["redact"]


async def test_numbers_are_never_used_twice() -> None:
    control = await a_settled()
    lost = control.world.revisions.pop(f"{POLICY}-1")
    await control.settle()
    assert list(control.world.revisions) == [f"{POLICY}-2"]
    assert control.world.status(POLICY)["accepted"]["revision"] == 2
    assert control.world.revisions[f"{POLICY}-2"].digest == lost.digest


async def test_a_sandbox_keeps_what_it_runs_if_somebody_deletes_the_revision_and_another_cannot_be_kept() -> None:
    control = await a_settled()
    before, published = control.distributor.stages("coder"), control.distributor.generations["uid-of-team-a-coder"]
    control.distributor.published.clear()
    control.world.revisions.pop(f"{POLICY}-1")
    control.world.fail = lambda act: Unavailable("full") if act.startswith("save") else None
    await control.settle()
    assert control.world.revisions == {}
    assert control.distributor.stages("coder") == before
    control.world.fail = lambda _: None
    await control.settle()
    assert list(control.world.revisions) == [f"{POLICY}-2"]
    assert control.distributor.stages("coder") == before
    # In between, too.
    told = [p["uid-of-team-a-coder"].digest for p in control.distributor.published if "uid-of-team-a-coder" in p]
    assert set(told) <= {published.digest}


async def test_an_uncommitted_revision_of_another_epoch_is_not_adopted() -> None:
    control = await a_settled()
    current = control.world.revisions[f"{POLICY}-1"]
    control.world.put(an_edit())
    fresh = a_control(control.world)
    await fresh.settle()
    second = control.world.revisions[f"{POLICY}-2"]
    zombie = replace(second, number=3, epoch=2, digest=current.digest, revision=current.revision)
    control.world.revisions[zombie.name] = zombie
    control.world.put(a_policy())
    await fresh.settle()
    assert control.world.status(POLICY)["accepted"]["revision"] == 4
    assert control.world.status(POLICY)["accepted"]["epoch"] == 7


# ------------------------------------------------------------------------------------------------------- baselines

PLATFORM = "uid-of-platform"


async def test_a_baseline_is_committed_and_told_like_any_policy() -> None:
    control = await a_settled()
    control.audited.clear()
    control.world.put(a_baseline())
    await control.settle()
    assert control.distributor.stages("coder") == ["platform:audit", "redact"]
    assert control.world.status(PLATFORM)["accepted"]["revision"] == 1
    assert control.world.status(PLATFORM)["supervisors"]["summary"] == "1/1"
    assert control.world.condition(PLATFORM, "Programmed") == ("True", "Programmed")
    assert control.world.notices == [("platform", "Accepted")]
    assert control.changes() == ["policy_accepted"]
    assert f"{PLATFORM}-1" in control.world.revisions


async def test_a_relabelled_namespace_gets_and_loses_a_baseline_and_nothing_is_written_but_counts() -> None:
    control = await a_settled()
    control.world.put(a_baseline(selector={"matchLabels": {"tier": "prod"}}))
    await control.settle()
    await control.later(2)  # counts of registrations are written once a second
    assert control.distributor.stages("coder") == ["redact"]
    assert control.world.condition(PLATFORM, "Programmed") == ("True", "NoSandboxes")
    unlabelled = control.world.namespaces["team-a"]
    control.world.acts.clear()
    control.world.namespaces["team-a"] = {**unlabelled, "tier": "prod"}
    await control.later(2)
    assert control.distributor.stages("coder") == ["platform:audit", "redact"]
    assert control.world.acts == ["publish", "status platform"]
    control.world.namespaces["team-a"] = unlabelled
    await control.settle()
    assert control.distributor.stages("coder") == ["redact"]


async def test_a_sandbox_waits_until_its_namespace_is_known() -> None:
    control = a_control(a_world())
    del control.world.namespaces["team-a"]
    await control.settle()
    assert control.distributor.generations == {}
    assert control.world.condition(POLICY, "Accepted") == ("True", "Accepted")
    control.world.namespaces["team-a"] = {}
    await control.settle()
    assert control.distributor.stages("coder") == ["redact"]


async def test_a_baseline_that_crowds_a_tenant_out_stands_and_the_tenants_hosts_close() -> None:
    control = await a_settled()
    control.world.put(a_baseline())
    ten = {f"key-{n}": an_entry_spec(order=n) for n in range(10)}
    control.world.put(a_policy(entries=ten))
    await control.settle()
    assert control.world.condition(POLICY, "Ready") == ("False", "Conflicted")
    assert control.world.condition(PLATFORM, "Ready") == ("True", "Ready")
    first, *rest = control.distributor.stages("coder")
    assert first == "platform:audit"
    assert all("Conflicted" in stage for stage in rest)


async def test_a_deleted_baseline_leaves_after_a_grace_and_a_refused_one_closes_its_hosts() -> None:
    control = await a_settled()
    control.world.put(a_baseline())
    await control.settle()
    control.world.remove(PLATFORM)
    await control.settle()
    assert control.distributor.stages("coder") == ["platform:audit", "redact"]
    await control.later(10)
    assert control.distributor.stages("coder") == ["redact"]
    assert not [name for name in control.world.revisions if name.startswith(PLATFORM)]
    control.world.put(a_baseline("closed", middleware="acme/unknown"))
    await control.settle()
    assert control.distributor.stages("coder") == ["platform:audit (NeverAccepted)", "redact"]


async def test_a_restart_changes_and_writes_nothing_of_a_baseline() -> None:
    control = await a_settled()
    control.world.put(a_baseline())
    await control.settle()
    await control.later(2)
    before, control.world.acts[:] = control.distributor.generations, []
    restarted = a_control(control.world, epoch=8)
    restarted.distributor.connected.add(CODER)
    await restarted.settle()
    assert {k: s.digest for k, s in restarted.distributor.generations.items()} == {
        k: s.digest for k, s in before.items()
    }
    assert control.world.acts == ["publish"]


# --------------------------------------------------------------------------------------------------- last-known-good


async def test_a_bad_edit_keeps_last_known_good_and_moves_nothing_else() -> None:
    control = await a_settled()
    control.world.put(a_policy("other", key="other", order=1))
    await control.settle()
    before = control.distributor.generations
    control.world.put(a_policy(middleware="acme/unknown"))
    await control.settle()
    assert control.distributor.generations == before
    assert control.world.condition(POLICY, "Accepted")[0] == "False"
    assert control.world.condition(POLICY, "Programmed")[0] == "False"
    assert control.world.status(POLICY)["accepted"]["revision"] == 1
    assert control.world.condition("uid-of-team-a-other", "Programmed")[0] == "True"


async def test_a_policy_that_was_never_accepted_closes_its_hosts() -> None:
    control = a_control(a_world())
    control.asker.verdicts[REDACTOR] = Rejected("canary")
    await control.settle()
    assert control.distributor.stages("coder") == ["redact (NeverAccepted)"]
    assert control.world.condition(POLICY, "Stalled") == ("True", "Invalid")
    assert control.world.status(POLICY)["violations"]
    assert "canary" not in str(control.world.status(POLICY))


async def test_a_mended_service_is_asked_again_without_an_edit() -> None:
    control = a_control(a_world())
    control.asker.verdicts[REDACTOR] = Rejected("no")
    await control.settle()
    control.asker.verdicts.clear()
    await control.later(30)
    assert control.world.condition(POLICY, "Accepted")[0] == "False"
    await control.later(31)
    assert control.world.condition(POLICY, "Accepted")[0] == "True"


async def test_a_deleted_policy_leaves_after_a_grace() -> None:
    control = await a_settled()
    control.world.remove(POLICY)
    await control.settle()
    assert control.distributor.stages("coder") == ["redact"]
    assert f"{POLICY}-1" in control.world.revisions
    await control.later(11)
    assert control.distributor.stages("coder") == []
    assert not control.world.revisions


async def test_the_next_leader_keeps_the_grace_of_a_policy_it_never_saw() -> None:
    control = await a_settled()
    control.world.remove(POLICY)
    successor = a_control(control.world, epoch=2)
    await successor.settle()
    assert successor.distributor.stages("coder") == ["redact"]
    assert f"{POLICY}-1" in control.world.revisions
    await successor.later(11)
    assert successor.distributor.stages("coder") == []
    assert not control.world.revisions


async def test_the_next_leader_lets_a_replacement_take_the_place_of_what_left() -> None:
    control = await a_settled()
    control.world.remove(POLICY)
    control.world.put(a_policy(uid="uid-2"))
    successor = a_control(control.world, epoch=2)
    await successor.reconciler.reconcile()
    assert successor.distributor.stages("coder") == ["redact"]
    await successor.settle()
    assert successor.distributor.stages("coder") == ["redact"]
    assert list(control.world.revisions) == ["uid-2-1"]


async def test_a_replaced_policy_opens_no_window_and_closes_nothing() -> None:
    control = await a_settled()
    control.world.remove(POLICY)
    await control.settle()
    control.world.put(a_policy(uid="uid-2"))
    await control.reconciler.reconcile()
    # Not accepted yet: what it replaces still applies.
    assert control.distributor.stages("coder") == ["redact"]
    assert "accepted" not in control.world.status("uid-2")
    await control.settle()
    assert control.distributor.stages("coder") == ["redact"]
    assert control.world.condition("uid-2", "Accepted")[0] == "True"


async def test_a_replacement_that_cannot_be_committed_leaves_what_it_replaces() -> None:
    control = await a_settled()
    control.world.remove(POLICY)
    control.world.put(a_policy("redaction", uid="uid-2"))
    control.world.fail = lambda act: Unavailable("conflict") if act == "status redaction" else None
    await control.settle()
    assert control.distributor.stages("coder") == ["redact"]
    control.world.fail = lambda _: None
    await control.settle()
    assert control.world.status("uid-2")["accepted"]["revision"] == 1
    assert control.distributor.stages("coder") == ["redact"]


async def test_a_replacement_that_is_refused_closes_its_hosts_after_the_grace() -> None:
    control = await a_settled()
    control.world.remove(POLICY)
    control.world.put(a_policy(uid="uid-2", middleware="acme/nobody"))
    await control.settle()
    assert control.distributor.stages("coder") == ["redact"]
    control.world.remove("uid-2")
    control.world.put(a_policy(uid="uid-3", middleware="acme/nobody"))
    await control.settle()
    assert control.distributor.stages("coder") == ["redact"]
    await control.later(11)
    assert control.distributor.stages("coder") == ["redact (NeverAccepted)"]


async def test_a_removed_registration_closes_what_needs_it() -> None:
    control = await a_settled()
    control.world.remove("uid-of-acme")
    await control.settle()
    assert control.distributor.stages("coder") == ["redact (RegistrationMissing)"]
    assert control.world.condition(POLICY, "ResolvedRefs") == ("False", "BindingNotFound")


# ------------------------------------------------------------------------------------------------------------ restart


async def test_a_restart_changes_and_writes_and_asks_nothing() -> None:
    control = await a_settled()
    restarted = a_control(control.world)
    restarted.distributor.connected.add(CODER)
    restarted.distributor.running.update(control.distributor.running)
    await restarted.settle()
    assert control.world.acts == ["publish"]
    assert restarted.distributor.generations == control.distributor.generations
    assert restarted.asker.asked == []
    assert restarted.asker.described == ["acme"]
    assert control.world.notices == []


async def test_a_service_that_is_down_at_restart_changes_nothing_but_says_so() -> None:
    control = await a_settled()
    asker = FakeAsker()
    asker.descriptions["acme"] = asker.verdicts[REDACTOR] = DOWN
    restarted = a_control(control.world, asker=asker)
    restarted.distributor.connected.add(CODER)
    restarted.distributor.running.update(control.distributor.running)
    await restarted.settle()
    assert restarted.distributor.generations == control.distributor.generations
    assert control.world.acts == ["publish", "status acme"]
    assert control.world.condition("uid-of-acme", "Reachable") == ("False", "Unreachable")
    assert control.world.condition("uid-of-acme", "Accepted") == ("True", "Accepted")
    assert control.world.condition(POLICY, "Accepted") == ("True", "Accepted")
    assert control.world.notices == []


async def test_a_policy_that_moved_to_another_namespace_under_its_uid_applies_there_and_nowhere_else() -> None:
    control = await a_settled()
    control.world.sandboxes.append(a_sandbox(namespace="team-b"))
    control.world.put(a_policy(namespace="team-b", uid=POLICY))
    await control.settle()
    found = control.distributor.generations
    assert not found[CODER].generation.stages
    (stage,) = found["uid-of-team-b-coder"].generation.stages
    assert (stage.policy, stage.unresolved) == ("team-b/redaction", None)


async def test_policies_are_judged_and_matched_off_the_loop_so_that_intricate_ones_hold_up_no_stream() -> None:
    spec, labels = Seen(a_policy(selector={"matchLabels": {"app": "x"}}).spec), Seen({"app": "x"})
    sandbox = replace(a_sandbox(), labels=labels)
    await a_control(FakeWorld(policies=[a_policy(spec=spec)], sandboxes=[sandbox])).settle()
    for seen in (spec, labels):
        assert seen.threads
        assert threading.get_ident() not in seen.threads


async def test_a_no_to_a_policy_that_is_gone_is_no_longer_held_against_another() -> None:
    control = await a_settled()
    control.asker.verdicts[REDACTOR] = Rejected("not any more")
    control.world.put(a_policy("same", namespace="team-b"))
    await control.settle()
    assert control.world.condition(POLICY, "Accepted") == ("False", "Invalid")
    control.world.remove("uid-of-team-b-same")
    await control.settle()
    await control.settle()
    assert control.world.condition(POLICY, "Accepted") == ("True", "Accepted")


async def test_a_rejected_policy_stays_rejected_while_it_is_asked_again_after_a_restart() -> None:
    control = a_control(a_world())
    control.asker.verdicts[REDACTOR] = Rejected("no")
    await control.settle()
    control.world.acts.clear()
    restarted = a_control(control.world)
    restarted.asker.verdicts[REDACTOR] = Rejected("no")
    await restarted.settle()
    assert control.world.acts == ["publish"]


# ---------------------------------------------------------------------------------------------- absence is not absence


async def test_an_unknown_kind_holds_everything() -> None:
    control = await a_settled()
    passes = len(control.distributor.published)
    control.world.unknown = frozenset({"SandboxPolicy"})
    control.world.remove(POLICY)
    control.world.put(a_policy("other", key="other", order=1))
    with capture_logs() as logs:
        await control.later(3600)
    assert len(control.distributor.published) == passes
    assert control.world.acts == []
    assert [log["kinds"] for log in logs] == [["SandboxPolicy"]]
    assert control.reconciler._next_due() is None, "what is overdue meanwhile must not make pass after pass"


async def test_nothing_is_published_before_every_kind_is_known() -> None:
    world = a_world()
    world.unknown = frozenset({"Sandbox"})
    control = a_control(world)
    await control.settle()
    assert not control.reconciler.has_published.is_set()
    world.unknown = frozenset()
    await control.settle()
    assert control.reconciler.has_published.is_set()


# ------------------------------------------------------------------------------------------------------------ statuses


async def test_an_equal_status_is_not_written_again() -> None:
    control = await a_settled()
    for _ in range(3):
        await control.later(61)
    assert control.world.acts == []


async def test_one_notice_and_one_audit_event_a_transition() -> None:
    control = await a_settled()
    control.audited.clear()
    control.world.put(a_policy(middleware="acme/unknown"))
    await control.settle()
    await control.later(31)
    assert control.world.notices == [("redaction", "BindingNotFound")]
    assert control.changes() == ["policy_rejected"]
    control.world.put(a_policy())
    await control.settle()
    assert control.world.notices[1:] == [("redaction", "Accepted")]
    assert control.changes() == ["policy_rejected", "policy_accepted"]


async def test_a_registration_that_goes_to_plaintext_is_audited_once() -> None:
    control = await a_settled()
    control.audited.clear()
    control.world.put(a_registration(generation=2, grpcEndpoint="http://redactor.acme.svc:8080", allowInsecure=True))
    await control.settle()
    await control.later(31)
    assert control.world.notices == [("acme", "InsecureTransport")]
    # What the service said before, it said elsewhere: the policy's revision is another.
    assert control.changes() == ["registration_accepted", "registration_insecure", "policy_accepted"]


async def test_what_was_accepted_in_the_clear_is_in_force_no_more_once_the_platform_forbids_it() -> None:
    world = FakeWorld(
        registrations=[a_registration(grpcEndpoint="http://redactor.acme.svc:8080", allowInsecure=True)],
        policies=[a_policy()],
        sandboxes=[a_sandbox()],
    )
    permitted = a_control(world)
    await permitted.settle()
    assert permitted.distributor.stages("coder") == ["redact"]

    forbidden = a_control(world, settings=some_settings(transport_phase=TransportPhase.STABLE))
    await forbidden.settle()
    assert forbidden.distributor.stages("coder") == ["redact (RegistrationMissing)"]
    assert forbidden.asker.described == []
    status = world.status("uid-of-acme")
    assert (status["bindingCount"], status["policies"]) == (0, 0)
    assert [(v["path"], v["reason"]) for v in status["violations"]] == [("spec.grpcEndpoint", "InsecureTransport")]
    assert world.condition("uid-of-acme", "Ready") == ("False", "Invalid")
    assert world.condition(POLICY, "ResolvedRefs") == ("False", "BindingNotFound")
    assert "registration_rejected" in forbidden.changes()

    world.put(a_registration(generation=2))
    await forbidden.settle()
    assert forbidden.distributor.stages("coder") == ["redact"]
    assert world.condition(POLICY, "ResolvedRefs")[0] == "True"


async def test_a_notice_that_cannot_be_sent_undoes_nothing() -> None:
    control = a_control(a_world())
    control.world.fail = lambda act: Unavailable("quota") if act.startswith("notify") else None
    await control.settle()
    assert control.distributor.stages("coder") == ["redact"]
    assert control.changes() == ["registration_accepted", "policy_accepted"]


async def test_a_new_revision_is_not_programmed_before_supervisors_serve_it() -> None:
    control = await a_settled()
    assert control.world.condition(POLICY, "Programmed") == ("True", "Programmed")
    control.world.put(an_edit())
    control.distributor.connected.clear()
    await control.settle()
    assert control.world.condition(POLICY, "Accepted")[0] == "True"
    assert control.world.condition(POLICY, "Programmed") == ("False", "NotConnected")


async def test_counts_are_written_once_a_second_and_transitions_at_once() -> None:
    world = a_world()
    world.sandboxes = [a_sandbox(f"s{n}") for n in range(5)]
    control = a_control(world)
    control.distributor.connected.add("uid-of-team-a-s0")
    await control.settle()
    await control.later(2)
    await control.later(2)
    control.world.acts.clear()
    for number in range(1, 4):
        control.distributor.connected.add(f"uid-of-team-a-s{number}")
        await control.settle()
    assert control.world.acts == ["status redaction"]
    assert control.reconciler._next_due() == control.time.replace(second=control.time.second + 1)
    await control.later(1)
    assert world.status(POLICY)["supervisors"]["connected"] == 4
    control.distributor.connected.add("uid-of-team-a-s4")
    await control.settle()
    await control.settle()
    assert world.condition(POLICY, "Programmed") == ("True", "Programmed")


async def test_one_status_the_store_never_takes_keeps_no_other_from_its_own() -> None:
    world = a_world()
    world.put(a_policy("other", key="other", order=1))
    world.fail = lambda act: Bug("schema") if act == "status acme" else None
    control = a_control(world)
    await control.settle()
    assert world.status(POLICY)["conditions"]
    assert world.status("uid-of-team-a-other")["conditions"]


# ---------------------------------------------------------------------------------------------------- old revisions


async def test_the_current_and_the_previous_revision_are_kept() -> None:
    control = await a_settled()
    for number in range(5):
        control.world.put(an_edit(number))
        await control.settle()
    assert sorted(control.world.revisions) == [f"{POLICY}-5", f"{POLICY}-6"]


async def test_revisions_of_policies_that_are_gone_are_removed_at_a_restart() -> None:
    control = await a_settled()
    orphan = a_revision(name="gone")
    stored = StoredRevision(number=1, epoch=1, digest=orphan.digest, revision=orphan)
    control.world.revisions[stored.name] = stored
    await control.settle()
    assert list(control.world.revisions) == [f"{POLICY}-1"]


async def test_a_revision_that_cannot_be_removed_is_tried_again() -> None:
    control = await a_settled()
    control.world.fail = lambda act: Unavailable("away") if act.startswith("delete") else None
    for number in range(3):
        control.world.put(an_edit(number))
        await control.settle()
    assert len(control.world.revisions) == 4
    control.world.fail = lambda _: None
    await control.settle()
    assert len(control.world.revisions) == 2


# ------------------------------------------------------------------------------------------------------------- outages


async def test_a_bundle_that_cannot_be_published_holds_back_no_generation() -> None:
    control = a_control(a_world())
    control.world.fail = lambda act: Unavailable("terminating") if act.startswith("bundle") else None
    await control.settle()
    assert control.distributor.stages("coder") == ["redact"]


async def test_a_store_outage_is_retried() -> None:
    control = a_control(a_world())
    control.world.is_away = True
    with pytest.raises(Unavailable):
        await control.reconciler.reconcile()
    control.world.is_away = False
    await control.settle()
    assert control.distributor.stages("coder") == ["redact"]


async def test_a_drifted_service_is_named_and_what_was_accepted_stays() -> None:
    control = await a_settled()
    before = control.distributor.generations
    control.asker.descriptions["acme"] = Described(a_manifest(a_binding("acme/other")))
    await control.later(61)
    assert control.world.condition("uid-of-acme", "Drifted") == ("True", "Drifted")
    assert control.world.condition("uid-of-acme", "Accepted")[0] == "False"
    assert control.distributor.generations == before
    control.asker.descriptions.clear()
    await control.later(61)
    assert control.world.condition("uid-of-acme", "Drifted") == ("False", "InSync")


async def test_an_edit_to_a_service_that_is_down_is_not_accepted_yet() -> None:
    control = await a_settled()
    before = control.distributor.generations
    control.asker.descriptions["acme"] = DOWN
    control.world.put(a_registration(grpcEndpoint="https://elsewhere.acme.svc:8443"))
    await control.settle()
    assert control.world.condition("uid-of-acme", "Accepted") == ("False", "Unreachable")
    assert control.distributor.generations == before
    assert {c.endpoint for c in control.asker.kept} == {
        "https://elsewhere.acme.svc:8443",
        "https://redactor.acme.svc:8443",
    }


# -------------------------------------------------------------------------------------------------------------- the loop


async def run_for(control: Control, seconds: float, *, until: Callable[[], bool] = lambda: True) -> None:
    """For so long, and until it came about: a machine may be slow."""
    running = asyncio.create_task(control.reconciler.run())
    await asyncio.sleep(seconds)
    async with asyncio.timeout(10):
        while not until():  # noqa: ASYNC110 - what comes about sets no event
            await asyncio.sleep(0.02)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert not control.reconciler._inquiries._tasks


def runs(control: Control, *stages: str) -> bool:
    return bool(control.distributor.generations) and control.distributor.stages("coder") == list(stages)


async def test_run_settles_and_then_rests() -> None:
    control = a_control(a_world())
    await run_for(control, 0.2, until=lambda: runs(control, "redact"))
    assert control.world.snapshots <= 8


async def test_a_burst_of_requests_is_few_passes() -> None:
    control = await a_settled()
    control.world.snapshots = 0
    running = asyncio.create_task(control.reconciler.run())
    for _ in range(100):
        control.reconciler.request()
        await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert 2 <= control.world.snapshots <= 8


async def test_the_first_request_is_not_held_back() -> None:
    control = await a_settled()
    control.world.snapshots = 0
    running = asyncio.create_task(control.reconciler.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert control.world.snapshots == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("error", [Unavailable("away"), ZeroDivisionError("canary")], ids=["an outage", "a bug"])
async def test_a_pass_that_fails_never_ends_the_loop(error: Exception) -> None:
    control = a_control(a_world())
    publish = control.distributor.publish

    async def broken(_: object) -> None:
        raise error

    control.distributor.publish = broken  # type: ignore[method-assign, assignment]
    with capture_logs() as logs:
        await run_for(control, 0.2)
        control.distributor.publish = publish  # type: ignore[method-assign]
        await run_for(control, 0.2, until=lambda: runs(control, "redact"))
    assert "canary" not in str(logs)
    assert "reconcile_errors_total 0.0" not in control.metrics.render().decode()


@pytest.mark.parametrize("state", ["down", "slow", "broken"])
async def test_a_service_in_trouble_makes_no_busy_loop(state: str) -> None:
    control = a_control(a_world())
    control.asker.descriptions["acme"] = DOWN
    control.asker.delay = 60.0 if state == "slow" else 0.0
    control.asker.error = ZeroDivisionError("canary") if state == "broken" else None
    with capture_logs() as logs:
        await run_for(control, 0.5)
    assert control.world.snapshots <= 8
    assert len(control.asker.described) == 1
    assert "canary" not in str(logs)


async def test_a_question_that_breaks_the_asker_is_an_outage() -> None:
    control = await a_settled()
    control.asker.error = ZeroDivisionError("canary")
    control.world.put(an_edit())
    with capture_logs() as logs:
        await control.settle()
    assert control.world.condition(POLICY, "Accepted") == ("False", "ValidationPending")
    assert control.distributor.stages("coder") == ["redact"]
    assert "canary" not in str(logs)
    assert len(control.asker.asked) == 2


async def test_a_slow_service_holds_back_nobody_elses_policy() -> None:
    world = a_world()
    world.put(a_registration("slow", grpcEndpoint="https://slow.svc"))
    world.put(a_policy("builtin", entries={"regex": an_entry_spec("openshell/regex", order=5)}))
    control = a_control(world)

    async def describe(connection: object, *, registration_name: str) -> object:
        await asyncio.sleep(60 if registration_name == "slow" else 0)
        return Described(a_manifest())

    control.asker.describe = describe  # type: ignore[method-assign, assignment]
    await run_for(control, 0.2, until=lambda: runs(control, "redact", "regex"))
    control.time += PENDING_GRACE
    await run_for(control, 0.2, until=lambda: world.condition("uid-of-slow", "Accepted") == ("Unknown", "Pending"))


# -------------------------------------------------------------------------------------------------------------- figures


async def test_metrics_tell_last_known_good_and_convergence() -> None:
    control = await a_settled()
    await control.settle()
    assert "generation_convergence_seconds_count 1.0" in control.metrics.render().decode()
    assert "last_known_good_serving 0.0" in control.metrics.render().decode()
    control.world.put(a_policy(middleware="acme/unknown"))
    await control.settle()
    assert "last_known_good_serving 1.0" in control.metrics.render().decode()
    await run_for(control, 0.05)
    assert "reconcile_duration_seconds_count 0.0" not in control.metrics.render().decode()

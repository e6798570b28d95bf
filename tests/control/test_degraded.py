"""A service that shrinks or drops something degrades those who use it, who keep what they run, and nobody else."""

from supervisor_middleware.model.canonical import short
from supervisor_middleware.model.manifest import Manifest
from supervisor_middleware.model.verdict import Described
from tests.builders import a_binding, a_manifest, a_policy, a_registration, a_sandbox
from tests.fakes.control import Control, FakeWorld, a_control

SERVICE = a_manifest(a_binding("acme/redactor"), a_binding("acme/audit"))
NEIGHBOUR = a_manifest(a_binding("other/scan"))
USER, SIBLING, STRANGER = (f"uid-of-team-a-{name}" for name in ("redaction", "auditing", "scanning"))


async def a_settled() -> Control:
    """Three policies: of a binding, of another binding of the same service, and of another service."""
    world = FakeWorld(
        registrations=[a_registration(), a_registration("other", grpcEndpoint="https://other.svc")],
        policies=[
            a_policy("redaction"),
            a_policy("auditing", key="audit", middleware="acme/audit", order=1),
            a_policy("scanning", key="scan", middleware="other/scan", order=2),
        ],
        sandboxes=[a_sandbox()],
    )
    control = a_control(world)
    control.asker.descriptions = {"acme": Described(SERVICE), "other": Described(NEIGHBOUR)}
    control.distributor.connected.add("uid-of-team-a-coder")
    await control.settle()
    await control.later(2)
    world.acts.clear()
    world.notices.clear()
    control.audited.clear()
    return control


async def offering(control: Control, *bindings: tuple[str, int]) -> Manifest:
    manifest = a_manifest(*(a_binding(i, max_body_bytes=limit) for i, limit in bindings))
    control.asker.descriptions["acme"] = Described(manifest)
    await control.later(61)
    return manifest


async def test_a_limit_that_shrinks_degrades_its_users_alone() -> None:
    control = await a_settled()
    before = control.distributor.generations
    manifest = await offering(control, ("acme/redactor", 1024), ("acme/audit", 65536))
    assert control.distributor.generations == before
    assert control.world.condition(USER, "Degraded") == ("True", "Drifted")
    assert control.world.condition(USER, "Ready") == ("True", "Ready")
    for unchanged in (SIBLING, STRANGER):
        assert control.world.condition(unchanged, "Degraded") == ("", "")
    assert sorted(control.world.acts) == ["status acme", "status redaction"]
    drifted = next(c for c in control.world.status("uid-of-acme")["conditions"] if c["type"] == "Drifted")
    assert "binding acme/redactor takes 1024 body bytes, not 4194304" in drifted["message"]
    assert short(SERVICE.digest) in drifted["message"]
    assert short(manifest.digest) in drifted["message"]
    assert sorted(control.world.notices) == [("acme", "Drifted"), ("acme", "Invalid"), ("redaction", "Degraded")]
    assert sorted(control.changes()) == ["registration_drifted", "registration_rejected"]


async def test_a_dropped_binding_degrades_its_users_until_it_is_back_and_is_told_once() -> None:
    control = await a_settled()
    before = control.distributor.generations
    for _ in range(3):
        await offering(control, ("acme/redactor", 65536))
    assert control.world.condition(SIBLING, "Degraded") == ("True", "Drifted")
    assert control.world.condition(USER, "Degraded") == ("", "")
    assert control.distributor.generations == before
    assert len(control.world.notices) == 3
    assert control.published() == []
    control.asker.descriptions["acme"] = Described(SERVICE)
    await control.later(61)
    assert control.world.condition(SIBLING, "Degraded") == ("", "")
    assert control.world.condition("uid-of-acme", "Drifted") == ("False", "InSync")
    assert control.changes()[2:] == ["registration_accepted"]


async def test_a_lost_connection_finds_the_drift_long_before_the_interval() -> None:
    control = await a_settled()
    await control.later(10)
    control.asker.descriptions["acme"] = Described(a_manifest(a_binding("acme/audit")))
    (connection,) = [c for c in control.asker.kept if "redactor" in c.endpoint]
    control.reconciler.lost(connection)
    await control.later(1)
    assert control.world.condition("uid-of-acme", "Drifted") == ("True", "Drifted")
    assert control.world.condition(USER, "Degraded") == ("True", "Drifted")


async def test_an_outage_degrades_nobody() -> None:
    control = await a_settled()
    control.asker.error = ZeroDivisionError()
    await control.later(61)
    assert control.world.condition("uid-of-acme", "Reachable")[0] == "False"
    assert control.world.condition(USER, "Degraded") == ("", "")
    assert control.world.condition(USER, "Ready") == ("True", "Ready")

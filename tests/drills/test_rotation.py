"""The root of identities rotates, again and again, while requests run: nobody notices."""

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from cryptography.x509 import Certificate

from supervisor_middleware.pki.bundles import parse_bundle
from supervisor_middleware.pki.credential_files import read_credentials
from supervisor_middleware.pki.rotation_files import read_status, request_rotation
from supervisor_middleware.pki.rotation_requests import Stage, new_request
from supervisor_middleware.pki.store import join_tokens
from tests.apps.rig import NAMESPACE, SANDBOX
from tests.drills.drill import PATIENCE, Drill
from tests.drills.fleet import join
from tests.pki.foreign import a_foreign_root

_NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def brisk(drill: Drill) -> None:
    """Stages follow each other as soon as everybody has said so."""
    drill.rig.control.environment = {**drill.rig.control.environment, "SMW_ROOT_OVERLAP": "1s"}


def rotate(drill: Drill, *, force: Stage | None = None) -> str:
    request = new_request(f"drill-{next(_NUMBERS)}", force=force)
    request_rotation(drill.rig.state, request)
    return request.identifier


def stage(drill: Drill) -> str:
    return str(read_status(drill.rig.state)["stage"])


def until(drill: Drill, what: str, is_so: Callable[[], bool]) -> None:
    drill.rig.until(what, is_so, seconds=PATIENCE)


def await_stage(drill: Drill, wanted: Stage, *, request: str) -> None:
    def is_so() -> bool:
        status = read_status(drill.rig.state)
        return (status["stage"], status["request"]) == (wanted.value, request)

    until(drill, f"the root is {wanted.value}", is_so)


def root(path: Path) -> Certificate:
    (certificate,) = parse_bundle(path.read_bytes())
    return certificate


def leaf(drill: Drill) -> Certificate:
    held = read_credentials(drill.agent.folder / "state" / "identity")
    assert held is not None
    return held.leaf


def test_the_root_rotates_under_load_and_no_request_fails(drill: Drill) -> None:
    drill.start()
    bundle = drill.rig.state / "ca.crt"
    seen = [root(bundle)]
    with drill.load() as load:
        drill.await_served(load)
        for _ in range(3):
            request = rotate(drill)
            drill.roll(load)
            await_stage(drill, Stage.STEADY, request=request)
            seen.append(root(bundle))
            leaf(drill).verify_directly_issued_by(seen[-1])
            assert parse_bundle((drill.agent.folder / "state" / "trust.pem").read_bytes()) == (seen[-1],)
            drill.roll(load)
            drill.await_answers(load, 20)
    tally = drill.account(load)
    assert not tally.unanswered
    assert not tally.failed
    assert len({certificate.serial_number for certificate in seen}) == 4
    # Whatever root issued their certificates, the service knew who called, and for what.
    assert drill.peers.service.callers == {
        "validates": {"spiffe://openshell.internal/ns/standalone/operator"},
        "evaluates": {"spiffe://openshell.internal/ns/team-a/sandbox/agent"},
    }


def test_a_control_plane_that_is_killed_at_any_stage_goes_on_with_the_same_rotation(drill: Drill) -> None:
    drill.start()
    before = root(drill.rig.state / "ca.crt")
    with drill.load() as load:
        drill.await_served(load)
        request = rotate(drill)
        for reached in (Stage.PREPARED, Stage.ACTIVATED, Stage.TAINTED, Stage.REVOKED):
            until(drill, f"{reached.value} or later", partial(_is_reached, drill, reached))
            drill.rig.control.kill()
            drill.await_answers(load, 5)
            drill.rig.control.start()
        await_stage(drill, Stage.STEADY, request=request)
        drill.await_connected()
        drill.roll(load)
    tally = drill.account(load)
    assert not tally.unanswered
    assert not tally.failed
    after = root(drill.rig.state / "ca.crt")
    assert after != before
    leaf(drill).verify_directly_issued_by(after)


def _is_reached(drill: Drill, wanted: Stage) -> bool:
    stages = [s.value for s in (Stage.PREPARED, Stage.ACTIVATED, Stage.TAINTED, Stage.REVOKED)]
    current = stage(drill)
    return current in stages and stages.index(current) >= stages.index(wanted.value)


def test_a_supervisor_that_is_away_is_waited_for_and_force_does_not_lock_it_out(drill: Drill) -> None:
    drill.start()
    with drill.load() as load:
        drill.await_served(load)
        drill.agent.process.kill()
        drill.supervisor_was_killed(load)
        accepted, validated = drill.rig.accepted(), drill.peers.service.validated
        request = rotate(drill)
        await_stage(drill, Stage.PREPARED, request=request)
        until(drill, "it is missed", lambda: _waits(drill) == {"supervisors_absent": 1})
        for forced in (Stage.PREPARED, Stage.ACTIVATED):
            request = rotate(drill, force=forced)
            following = {Stage.PREPARED: Stage.ACTIVATED, Stage.ACTIVATED: Stage.TAINTED}[forced]
            await_stage(drill, following, request=request)
        until(drill, "it is missed again", lambda: _waits(drill) == {"supervisors_absent": 1})
        # It knows the old root alone; what it was given to begin with names both.
        drill.agent.process.start()
        await_stage(drill, Stage.STEADY, request=request)
        drill.await_connected()
        # Another root is no other policy: nothing was judged again, and the generation is the same.
        assert (drill.rig.accepted(), drill.peers.service.validated) == (accepted, validated)
        drill.roll(load)
    leaf(drill).verify_directly_issued_by(root(drill.rig.state / "ca.crt"))
    assert '"root_forced"' in (drill.rig.state / "audit.jsonl").read_text()


def test_a_sandbox_without_a_supervisor_holds_no_rotation_and_one_that_joined_once_does_until_it_is_revoked(
    drill: Drill,
) -> None:
    drill.start()
    drill.rig.write("ghost.yaml", SANDBOX.format(name="ghost"))
    drill.rig.until("it is in the folder", lambda: _matched(drill) == 2)
    await_stage(drill, Stage.STEADY, request=rotate(drill))
    # Joined, and never came: what it holds may be good for a day.
    join(drill.rig, ["sleeper"])
    drill.rig.until("it is there, too", lambda: _matched(drill) == 3)
    await_stage(drill, Stage.PREPARED, request=rotate(drill))
    until(drill, "it is missed", lambda: _waits(drill) == {"supervisors_absent": 1})
    with join_tokens(drill.rig.state) as tokens:
        assert tokens.revoke(NAMESPACE, "sleeper", datetime.now(UTC)) == 1
    until(drill, "nobody waits for it", lambda: stage(drill) == Stage.STEADY)
    leaf(drill).verify_directly_issued_by(root(drill.rig.state / "ca.crt"))


def test_a_root_that_is_supplied_in_files_takes_over_under_load_and_no_request_fails(drill: Drill) -> None:
    source = drill.rig.folder / "ca"
    source.mkdir()
    drill.rig.control.environment = {**drill.rig.control.environment, "SMW_CA_DIR": str(source)}
    drill.start()
    now = datetime.now(UTC)
    theirs = a_foreign_root(now=now - timedelta(days=1), trust_domain="openshell.internal")
    with drill.load() as load:
        drill.await_served(load)
        (source / "tls.key").write_bytes(theirs.private_key_pem.reveal())
        (source / "tls.key").chmod(0o600)
        (source / "tls.crt").write_bytes(theirs.certificate_pem)
        bundle = drill.rig.state / "ca.crt"
        until(drill, "it alone is trusted", lambda: parse_bundle(bundle.read_bytes()) == (theirs.certificate,))
        until(drill, "it is steady", lambda: stage(drill) == Stage.STEADY)
        leaf(drill).verify_directly_issued_by(theirs.certificate)
        drill.roll(load)
    tally = drill.account(load)
    assert not tally.unanswered
    assert not tally.failed


def _matched(drill: Drill) -> int:
    return int(drill.rig.status()["supervisors"]["matched"])


def _waits(drill: Drill) -> dict[str, int]:
    waits = read_status(drill.rig.state)["waitsFor"]
    return {wait["reason"]: wait["count"] for wait in waits}

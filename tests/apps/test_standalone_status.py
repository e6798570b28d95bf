"""Who runs what on one machine: `smw status` towards a running standalone, and after it ended."""

import json
import stat
from typing import Any

from supervisor_middleware.sources.local_access import ACCESS_FILE, read_endpoint
from tests.apps.rig import NAMESPACE, SANDBOX, Rig, probe
from tests.cli.commands import Outcome, in_a_process


def status(rig: Rig, *arguments: str) -> Outcome:
    return in_a_process("status", "--state", rig.state, *arguments)


def told(shown: Outcome) -> dict[str, dict[str, Any]]:
    """Supervisors and totals, by name; totals have none."""
    found = (o for o in json.loads(shown.out) if o["kind"] in {"Supervisor", "Supervisors"})
    return {o["name"]: o["status"] for o in found}


def test_who_runs_what_is_told_to_whoever_may_read_the_state_directory(rig: Rig) -> None:
    agent = rig.supervisor()
    rig.write("sandbox-idle.yaml", SANDBOX.format(name="idle"))
    for process in (rig.service, rig.control, agent.process):
        process.start()
    rig.until("it is configured", lambda: probe(agent.health, "/readyz")[0] == 200)
    rig.until("it is told", lambda: told(status(rig, "-o", "json"))["agent"]["state"] == "Active")
    assert stat.S_IMODE((rig.state / ACCESS_FILE).stat().st_mode) == 0o600
    shown = status(rig, "--namespace", NAMESPACE)
    assert (shown.code, shown.err) == (1, "")
    assert "supervisors: 1/2 on desired, 1 NotConnected" in shown.out
    # Of one that runs what it should, in a namespace with a policy that waits for another.
    one = told(status(rig, "--sandbox", f"{NAMESPACE}/agent", "-o", "json"))
    assert one["agent"]["desired"]["digest"] == one["agent"]["active"]
    assert (one["agent"]["trustBundle"], one["agent"]["pod"]) == ("Current", None)
    assert one[None]["states"] == {"Active": 1}  # type: ignore[index]
    absent = status(rig, "--sandbox", f"{NAMESPACE}/nobody")
    assert absent.code == 1
    assert "no sandboxes" in absent.out
    endpoint = read_endpoint(rig.state)
    assert endpoint is not None
    wrong = rig.folder / "wrong"
    wrong.write_text("another token")
    refused = status(rig, "--token-file", str(wrong))
    assert "supervisors are not shown" in refused.err
    assert "UNAUTHENTICATED" in refused.err
    assert endpoint.token not in rig.control.log.read_text() + shown.out + shown.err + refused.err
    rig.control.stop()
    assert not (rig.state / ACCESS_FILE).exists()
    after = status(rig)
    assert (
        after.err == f"smw: supervisors are not shown: no control plane runs on {rig.state}: start smw standalone\n"
    )
    assert f"{NAMESPACE}/outbound" in after.out
    assert status(rig, "--sandbox", f"{NAMESPACE}/agent").code == 2
    assert status(rig, "--watch").code == 2

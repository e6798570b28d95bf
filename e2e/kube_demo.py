"""`make kube-demo`: the demo's story on a real API server, with `examples/cluster`, told with kubectl. Exit code 1 if a step differs.

Real parts throughout: etcd, kube-apiserver, the operator as its ServiceAccount, a service over mutual TLS, a
supervisor enrolled with a pod-bound token, Envoy. Only the Pod is an object without a kubelet: its supervisor runs here.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.controlplane.build import ensure
from e2e.controlplane.cluster import Controllers, ControlPlane
from e2e.harness import OPERATOR_NAMESPACE, Installation
from supervisor_middleware.cli.processes import Process, echo_upstream, free_port, post
from supervisor_middleware.cli.timeline import Timeline
from supervisor_middleware.errors import SupervisorMiddlewareError

_ROOT: Final = Path(__file__).resolve().parents[1]
_EXAMPLE: Final = _ROOT / "examples/cluster"
_NAMESPACE: Final = "agents"
_SANDBOX: Final = "agent-0"
_KEY: Final = "sk-0123456789abcdefghij"


def main() -> int:
    """Run it."""
    timeline = Timeline("kube-demo")
    timeline.note("starting etcd and kube-apiserver")
    with tempfile.TemporaryDirectory(prefix="smw-kube-demo-") as folder, _cluster() as plane, echo_upstream() as up:
        timeline.note("installing CRDs, RBAC and the webhook; starting the operator")
        with Installation(plane, Path(folder)) as installation:
            try:
                _Story(installation, timeline, upstream=up).tell()
            except SupervisorMiddlewareError as error:
                timeline.step("the story goes on", expected="yes", happened=str(error))
    return timeline.finish()


@contextmanager
def _cluster() -> Iterator[ControlPlane]:
    with ControlPlane(binaries=ensure(), controllers=Controllers.RUNNING) as plane:
        crds = [f"--filename={p}" for p in sorted((_ROOT / "crds").glob("*.yaml"))]
        plane.kubectl("apply", "--server-side", *crds)
        plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", *crds)
        yield plane


class _Story:
    def __init__(self, installation: Installation, timeline: Timeline, *, upstream: int) -> None:
        self._with, self._timeline, self._upstream = installation, timeline, upstream
        self._namespaces = _documents("00-namespaces.yaml")
        self._bundle, *self._rights = _documents("10-ca-bundle.yaml")
        (self._registration,) = _documents("20-registration.yaml")
        (self._policy,) = _documents("30-policy.yaml")
        (self._pod,) = _documents("40-sandbox.yaml")
        self._service: Process | None = None
        self._proxy = 0

    def tell(self) -> None:
        """Chapter by chapter."""
        self._register()
        self._refuse()
        self._roll_out()
        self._break()
        self._lose_service()
        self._lose_operator()

    def _register(self) -> None:
        self._timeline.chapter("Register a service (cluster-scoped: an administrator's act)")
        port = free_port()
        self._service, authority = self._with.terms_service(port=port)
        self._bundle["data"]["ca.crt"] = authority
        self._registration["spec"]["grpcEndpoint"] = f"https://127.0.0.1:{port}"
        self._with.apply(*self._namespaces, self._bundle, *self._rights, self._registration)
        result = self._kubectl("wait", "--for=condition=Ready", "smw/terms", "--timeout=30s")
        self._timeline.step(
            "kubectl apply of the registration; kubectl wait --for=condition=Ready",
            expected="condition met",
            happened=_met(result),
        )

    def _refuse(self) -> None:
        self._timeline.chapter("A wrong policy is refused before it is stored, with everything that is wrong")
        wrong = json.loads(json.dumps(self._policy))
        entries = wrong["spec"]["networkMiddlewares"]
        entries["codenames"]["middleware"] = "acme/term"
        entries["confidential"]["config"]["action"] = "explode"
        entries["api-keys"]["config"] = {"mode": "reveal"}
        said = self._with.refusal(wrong)
        lines = tuple(line.strip() for line in said.splitlines() if line.strip().startswith("*"))
        self._timeline.step(
            "kubectl apply of a policy with three mistakes",
            expected="refused, 3 violations",
            happened=f"refused, {len(lines)} violations",
            details=lines,
        )

    def _roll_out(self) -> None:
        self._timeline.chapter("The mended one is admitted, compiled, distributed and enforced")
        self._with.wait("the ServiceAccount is there", self._has_account)
        self._with.apply(self._pod, self._policy)
        _, self._proxy = self._with.supervisor(
            namespace=_NAMESPACE, sandbox=_SANDBOX, pod=_SANDBOX, upstream=self._upstream
        )
        result = self._kubectl(
            "wait", "--for=condition=Programmed", "sbp/outbound", "-n", _NAMESPACE, "--timeout=30s"
        )
        self._timeline.step(
            "kubectl apply; kubectl wait --for=condition=Programmed",
            expected="condition met",
            happened=_met(result),
            details=tuple(self._kubectl("get", "smw,sbp,prev", "-A").splitlines()),
        )
        self._send("a host no policy selects", "example.org", f"{_KEY} Project Heron", "200, untouched")
        self._send("a selected host", "api.example.com", f"{_KEY} Project Heron", "200, [REDACTED] [REDACTED]")
        self._send("what is confidential", "api.example.com", "CONFIDENTIAL", "403, middleware_denied")

    def _break(self) -> None:
        self._timeline.chapter("A bad edit that gets past the webhook changes nothing that runs")
        before = self._with.get("sbp", "outbound", namespace=_NAMESPACE)["status"]["accepted"]
        self._kubectl("delete", "validatingwebhookconfiguration", "--all")
        wrong = json.loads(json.dumps(self._policy))
        wrong["spec"]["networkMiddlewares"]["codenames"]["middleware"] = "acme/term"
        self._with.apply(wrong)
        result = self._kubectl(
            "wait", "--for=condition=Accepted=false", "sbp/outbound", "-n", _NAMESPACE, "--timeout=30s"
        )
        status = self._with.get("sbp", "outbound", namespace=_NAMESPACE)["status"]
        self._timeline.step(
            "kubectl wait --for=condition=Accepted=false, with the webhook removed",
            expected="condition met, revision kept",
            happened=_met(result) + (", revision kept" if status["accepted"] == before else ", another revision"),
            details=tuple(f"{v['path']}: {v['message']}" for v in status["violations"]),
        )
        self._send("last-known-good still serves", "api.example.com", f"{_KEY} Heron", "200, [REDACTED] Heron")
        self._with.apply(self._policy)
        result = self._kubectl(
            "wait", "--for=condition=Programmed", "sbp/outbound", "-n", _NAMESPACE, "--timeout=30s"
        )
        self._timeline.step(
            "mended again",
            expected="condition met",
            happened=_met(result),
        )

    def _lose_service(self) -> None:
        self._timeline.chapter("The service dies (SIGKILL)")
        if self._service is not None:
            self._service.kill()
        self._send("FailClosed host", "api.example.com", "hello", "403, middleware_failed")
        self._send("FailOpen host", "telemetry.example.com", "hello", "200, untouched")
        bypasses = [e for e in self._audit() if "bypass" in json.dumps(e).lower()]
        self._timeline.step(
            "the bypass is audited", expected="audited", happened="audited" if bypasses else "no audit event"
        )

    def _lose_operator(self) -> None:
        self._timeline.chapter("The operator dies (SIGKILL): the data plane serves on, objects still delete")
        self._with.operator.kill()
        self._send("built-in redaction goes on", "www.example.com", _KEY, "200, [REDACTED]")
        self._with.wait("gone", lambda: "deleted" in self._kubectl("delete", "sbp", "outbound", "-n", _NAMESPACE))
        self._timeline.step("kubectl delete sbp outbound", expected="deleted", happened="deleted")

    # ---------------------------------------------------------------------------------------------------------- helpers

    def _send(self, what: str, host: str, body: str, expected: str) -> None:
        answer = post(self._proxy, host, body)
        self._timeline.step(f"POST {host}: {what}", expected=expected, happened=answer.shown(sent=body))

    def _kubectl(self, *arguments: str) -> str:
        result = self._with.plane.kubectl(*arguments, check=False)
        return (result.stdout + result.stderr).strip()

    def _has_account(self) -> bool:
        return "default" in self._kubectl("get", "serviceaccount", "-n", _NAMESPACE, "-o", "name")

    def _audit(self) -> Sequence[Any]:
        files = self._with.directory.glob("supervisor-*/audit.jsonl")
        return [json.loads(line) for f in files for line in f.read_text().splitlines()]


def _documents(name: str) -> list[dict[str, Any]]:
    """As they are written, but for the namespace the operator runs in here."""
    text = (_EXAMPLE / name).read_text()
    subject = "  name: supervisor-middleware\n  namespace: "
    text = text.replace(f"{subject}supervisor-middleware\n", f"{subject}{OPERATOR_NAMESPACE}\n")
    return list(yaml.safe_load_all(text))


def _met(said: str) -> str:
    """What `kubectl wait` said, without the object's name if the condition was met."""
    return "condition met" if "condition met" in said else said


if __name__ == "__main__":
    sys.exit(main())

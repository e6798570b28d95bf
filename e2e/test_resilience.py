"""Whatever goes away and comes back, sandboxes run what they ran: operator, service, API server, the policy itself."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from e2e.controlplane.cluster import ControlPlane
from e2e.harness import Installation, a_pod, read
from e2e.objects import Document, a_policy, a_registration, an_entry
from supervisor_middleware.cli.processes import Answer, Process, echo_upstream, free_port, post

_log = logging.getLogger(__name__)
_KEY = "sk-0123456789abcdefghij"
_PROGRAMMED = "Programmed=True/Programmed"
_TERMS = {"terms": ["Project Heron"], "action": "redact"}


@dataclass(frozen=True, slots=True)
class World:
    """A namespace with one sandbox that a built-in and a real service redact for; its supervisor and the service."""

    installation: Installation
    namespace: str
    proxy: int
    service: Process

    def standing(self) -> tuple[Document, list[str]]:
        """What sandboxes run, and every revision there is."""
        found = self.installation.get("sbp", "outbound", namespace=self.namespace)
        accepted: Document = found["status"]["accepted"]
        return accepted, self.installation.revisions()

    def await_programmed(self) -> None:
        """Until the supervisor is connected and serves what the policy says."""
        self.installation.wait("the supervisor is connected", lambda: self.installation.connected() == 1)
        self.installation.await_condition("sbp", "outbound", _PROGRAMMED, namespace=self.namespace)

    def restart_operator(self) -> None:
        """SIGKILL, and a new process; requests are served in between."""
        self.installation.operator.kill()
        assert self.send().body == "[REDACTED]"
        self.installation.start()

    def send(self, host: str = "www.example.com", body: str = _KEY) -> Answer:
        """A request of the sandbox."""
        return post(self.proxy, host, body)


@pytest.fixture(scope="module")
def world(installation: Installation) -> Iterator[World]:
    namespace = installation.plane.create_namespace("world")
    port = free_port()
    service, authority = installation.terms_service(port=port)
    endpoint = f"https://127.0.0.1:{port}"
    installation.apply(
        a_registration("terms", endpoint=endpoint, tls={"caBundle": authority}, timeout="2s"),
        a_pod("agent-0", namespace=namespace, sandbox="agent"),
    )
    installation.await_condition("smw", "terms", "Ready=True/Ready")
    installation.apply(_outbound(namespace))
    with echo_upstream() as upstream:
        _, proxy = installation.supervisor(namespace=namespace, sandbox="agent", pod="agent-0", upstream=upstream)
        made = World(installation, namespace, proxy, service)
        made.await_programmed()
        yield made
    installation.plane.kubectl("delete", "namespace", namespace, "--wait=false")


def _outbound(namespace: str) -> Document:
    return a_policy(
        "outbound",
        namespace=namespace,
        keys=an_entry(order=10),
        codenames=an_entry("acme/terms", order=20, config=_TERMS, include=["api.example.com"]),
    )


def test_a_killed_operator_comes_back_to_the_same_revisions(world: World) -> None:
    before = world.standing()
    world.restart_operator()
    world.await_programmed()
    assert world.standing() == before
    assert world.send("api.example.com", f"{_KEY} Project Heron").body == "[REDACTED] [REDACTED]"


def test_an_operator_that_starts_while_a_service_is_down_changes_nothing(world: World) -> None:
    before = world.standing()
    manifest = world.installation.get("smw", "terms")["status"]["accepted"]
    world.service.stop()
    world.restart_operator()
    world.installation.await_condition("smw", "terms", "Reachable=False/Unreachable")
    world.await_programmed()
    assert world.standing() == before
    assert world.installation.get("smw", "terms")["status"]["accepted"] == manifest
    world.installation.await_condition("sbp", "outbound", "Ready=True/Ready", namespace=world.namespace)
    assert world.send().body == "[REDACTED]"
    assert world.send("api.example.com").error == "middleware_failed"

    world.service.start()
    world.installation.await_condition("smw", "terms", "Ready=True/Ready")
    world.installation.wait("the service is used again", lambda: world.send("api.example.com").status == 200)
    assert world.standing() == before


def test_with_the_operator_gone_everything_still_deletes_and_sandboxes_are_served(world: World) -> None:
    installation, plane = world.installation, world.installation.plane
    before = world.standing()
    doomed = plane.create_namespace("doomed")
    installation.apply(
        a_registration("doomed", endpoint=f"http://127.0.0.1:{free_port()}"),
        a_policy("alone", namespace=doomed),
        a_policy("with-its-namespace", namespace=doomed, also=an_entry(order=1)),
        a_pod("agent-0", namespace=doomed, sandbox="agent"),
    )
    for name in ("alone", "with-its-namespace"):
        installation.await_condition("sbp", name, "Ready=True/Ready", namespace=doomed)
    uids = [
        installation.get("sbp", name, namespace=doomed)["metadata"]["uid"] for name in ("alone", "with-its-namespace")
    ]
    assert all(installation.revisions(of=uid) for uid in uids)

    installation.operator.kill()
    assert "failed calling webhook" in installation.refusal(a_policy("new", namespace=doomed))
    plane.kubectl("delete", "sbp", "alone", "-n", doomed, "--timeout=30s")
    plane.kubectl("delete", "smw", "doomed", "--timeout=30s")
    plane.kubectl("delete", "namespace", doomed, "--timeout=60s")
    assert "NotFound" in plane.kubectl("get", "namespace", doomed, check=False).stderr
    assert world.send("api.example.com", f"{_KEY} Project Heron").body == "[REDACTED] [REDACTED]"

    installation.start()
    world.await_programmed()
    installation.wait("what is gone is collected", lambda: not any(installation.revisions(of=u) for u in uids))
    assert world.standing() == before


@dataclass(slots=True)
class Traffic:
    """Requests without a pause, from a thread of their own, and what became of them."""

    answers: list[Answer] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    def run(self, proxy: int) -> None:
        """Until it is over."""
        while not self.is_over.is_set():
            try:
                self.answers.append(post(proxy, "www.example.com", _KEY))
            except OSError as error:
                self.errors.append(error)


@contextmanager
def _traffic(proxy: int) -> Iterator[Traffic]:
    traffic = Traffic()
    threads = [threading.Thread(target=traffic.run, args=(proxy,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield traffic
    finally:
        traffic.is_over.set()
        for thread in threads:
            thread.join()


def test_a_policy_replaced_by_force_opens_no_window_and_closes_nothing(world: World) -> None:
    plane, old = world.installation.plane, world.installation.get("sbp", "outbound", namespace=world.namespace)
    with _traffic(world.proxy) as traffic:
        world.installation.wait("requests flow", lambda: len(traffic.answers) >= 50)
        plane.kubectl("replace", "--force", "-f", "-", input=yaml.safe_dump(_outbound(world.namespace)))
        world.await_programmed()
        new = world.installation.get("sbp", "outbound", namespace=world.namespace)
        assert new["metadata"]["uid"] != old["metadata"]["uid"]
        plane.kubectl("delete", "sbp", "outbound", "-n", world.namespace)
        plane.kubectl("create", "-f", "-", input=yaml.safe_dump(_outbound(world.namespace)))
        world.await_programmed()
        seen = len(traffic.answers)
        world.installation.wait("requests flow", lambda: len(traffic.answers) >= seen + 50)
    assert not traffic.errors
    _log.info("%d requests", len(traffic.answers))
    assert {(a.status, a.body) for a in traffic.answers} == {(200, "[REDACTED]")}, "none unredacted, none refused"


def test_an_api_server_that_restarts_leaves_a_running_operator_that_rolls_out_later_edits(
    fresh_control_plane: ControlPlane, tmp_path: Path
) -> None:
    plane = fresh_control_plane
    with Installation(plane, tmp_path) as installation, echo_upstream() as upstream:
        namespace = plane.create_namespace("restart")
        installation.apply(
            a_policy("outbound", namespace=namespace), a_pod("agent-0", namespace=namespace, sandbox="agent")
        )
        _, proxy = installation.supervisor(namespace=namespace, sandbox="agent", pod="agent-0", upstream=upstream)
        installation.await_condition("sbp", "outbound", _PROGRAMMED, namespace=namespace)
        before = installation.get("sbp", "outbound", namespace=namespace)["status"]["accepted"]

        plane.stop_apiserver()
        assert post(proxy, "api.example.com", _KEY).body == "[REDACTED]"
        assert read(installation.health_port, "/healthz")[0] == 200
        assert installation.connected() == 1
        plane.start_apiserver()
        up = time.monotonic()
        assert installation.get("sbp", "outbound", namespace=namespace)["status"]["accepted"] == before
        edited = a_policy("outbound", namespace=namespace, redact=an_entry(include=["**.example.org"]))
        installation.wait("the webhook answers", lambda: _is_applied(plane, edited))
        installation.await_condition("sbp", "outbound", _PROGRAMMED, namespace=namespace, seconds=60)
        _log.info("an edit was in force %.2f s after the API server came back", time.monotonic() - up)
        assert post(proxy, "api.example.org", _KEY).body == "[REDACTED]"
        assert post(proxy, "api.example.com", _KEY).body == _KEY
        accepted = installation.get("sbp", "outbound", namespace=namespace)["status"]["accepted"]
        assert accepted["revision"] == 2
        assert accepted["epoch"] >= before["epoch"], "a leader that cannot renew steps down"

        # By the watch, not by the list of every half minute.
        again = a_policy("outbound", namespace=namespace)
        began = time.monotonic()
        installation.apply(again)
        installation.await_condition("sbp", "outbound", _PROGRAMMED, namespace=namespace)
        _log.info("the next one %.2f s after kubectl was started", time.monotonic() - began)
        installation.operator.check()


def _is_applied(plane: ControlPlane, document: Document) -> bool:
    return plane.kubectl("apply", "-f", "-", input=yaml.safe_dump(document), check=False).returncode == 0

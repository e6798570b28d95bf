"""A platform's baseline on a real API server: whom it selects, where it stands, and that no tenant weakens it."""

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from e2e.harness import TRUST_DOMAIN, Installation, a_pod
from e2e.objects import Document, a_baseline, a_policy, an_entry, changed, skipping
from supervisor_middleware.cli.processes import echo_upstream, post
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.pki.spiffe import supervisor_id
from supervisor_middleware.supervisor.record import Record, decode
from supervisor_middleware.supervisor.store import FILE_NAME
from tests.cli.commands import in_a_process

_KEY = "sk-0123456789abcdefghij"
_PROGRAMMED = "Programmed=True/Programmed"
_ALONE = ("redact",)


@dataclass(frozen=True, slots=True)
class Team:
    """A namespace whose policy `outbound` redacts for its one sandbox; its supervisor."""

    installation: Installation
    namespace: str
    proxy: int

    def label(self, *labels: str) -> None:
        """Change labels of the namespace."""
        self.installation.plane.kubectl("label", "namespace", self.namespace, *labels)

    def count(self, baseline: str) -> str:
        """How many sandboxes run a baseline, of how many that it selects."""
        return str(self.installation.get("csbp", baseline)["status"]["supervisors"]["summary"])

    def chain(self) -> tuple[str, ...]:
        """What its supervisor keeps: the stages' keys in running order, and of those that cannot run why."""
        folder = self.installation.directory / f"supervisor-{self.namespace}-agent-0" / "state" / "generation"
        return _chain(folder / FILE_NAME, namespace=self.namespace)

    def await_chain(self, *keys: str, seconds: float = 30.0) -> None:
        """Until these are its stages."""
        try:
            self.installation.wait(f"the chain is {keys}", lambda: self.chain() == keys, seconds=seconds)
        except Unavailable as error:
            raise Unavailable(f"{error}; it is {self.chain()}") from error


def _chain(path: Path, *, namespace: str) -> tuple[str, ...]:
    if not path.exists():
        return ()
    record = decode(path.read_bytes(), owner=str(supervisor_id(TRUST_DOMAIN, namespace=namespace, sandbox="agent")))
    if not isinstance(record, Record) or record.sealed is None:
        return ()
    stages = record.sealed.generation.stages
    return tuple(s.key + (f" ({s.unresolved.value})" if s.unresolved else "") for s in stages)


@pytest.fixture(scope="module")
def team(installation: Installation) -> Iterator[Team]:
    namespace = installation.plane.create_namespace("team")
    installation.apply(
        a_policy("outbound", namespace=namespace), a_pod("agent-0", namespace=namespace, sandbox="agent")
    )
    with echo_upstream() as upstream:
        _, proxy = installation.supervisor(namespace=namespace, sandbox="agent", pod="agent-0", upstream=upstream)
        made = Team(installation, namespace, proxy)
        made.await_chain(*_ALONE)
        yield made
    installation.plane.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
def label(team: Team) -> Iterator[str]:
    """A label that no namespace has yet, for the baselines of this test alone."""
    name = f"baseline-{secrets.token_hex(4)}"
    yield name
    # What is deleted stays for a grace; what selects nobody is gone at once.
    team.label(f"{name}-")
    team.installation.plane.kubectl("delete", "csbp", "--all", "--wait=false")
    team.await_chain(*_ALONE)


def test_a_baseline_stands_before_tenants_or_after_them_whatever_keys_and_orders_they_took(
    team: Team, label: str
) -> None:
    installation, plane = team.installation, team.installation.plane
    baseline = a_baseline(label, selector={label: "yes"}, redact=an_entry(), more=an_entry(order=-5))
    installation.apply(baseline)
    team.label(f"{label}=yes")
    team.await_chain("platform:more", "platform:redact", "redact")
    plane.kubectl("wait", "--for=condition=Programmed", f"csbp/{label}", "--timeout=30s")
    assert installation.get("csbp", label)["spec"]["position"] == "First"
    assert post(team.proxy, "api.example.com", _KEY).body == "[REDACTED]"

    installation.apply(changed(baseline, "spec.position", "Last"))
    team.await_chain("redact", "platform:more", "platform:redact")
    installation.await_condition("csbp", label, _PROGRAMMED)
    header, row = plane.kubectl("get", "csbp", label).stdout.splitlines()
    shown = dict(zip(header.split(), row.split(), strict=True))
    assert {k: shown[k] for k in ("NAME", "READY", "REASON", "PROGRAMMED", "POSITION", "REVISION", "STAGES")} == {
        "NAME": label,
        "READY": "True",
        "REASON": "Ready",
        "PROGRAMMED": "True",
        "POSITION": "Last",
        "REVISION": "2",
        "STAGES": "2",
    }
    assert shown["ACTIVE"] == "1/1"


def test_it_comes_and_goes_with_a_label_of_the_namespace_and_not_with_one_of_the_pod(team: Team, label: str) -> None:
    installation, plane = team.installation, team.installation.plane
    blue = a_policy("blue", namespace=team.namespace, selector={"team": "blue"}, blue=an_entry(order=50))
    installation.apply(a_baseline(label, selector={label: "yes"}), blue)
    installation.await_condition("csbp", label, "Programmed=True/NoSandboxes")
    team.label(f"{label}=yes")
    team.await_chain("platform:redact", "redact")
    installation.await_condition("csbp", label, _PROGRAMMED)

    plane.kubectl("label", "pod", "agent-0", "-n", team.namespace, "team=blue")
    team.await_chain("platform:redact", "redact", "blue")
    plane.kubectl("label", "pod", "agent-0", "-n", team.namespace, "team-", f"{label}=no")
    team.await_chain("platform:redact", "redact")

    team.label("--overwrite", f"{label}=no")
    team.await_chain("redact")
    installation.wait("nobody is counted", lambda: team.count(label) == "0/0")
    team.label("--overwrite", f"{label}=yes")
    team.await_chain("platform:redact", "redact")
    plane.kubectl("delete", "sbp", "blue", "-n", team.namespace)


@contextmanager
def _a_namespace(installation: Installation, label: str) -> Iterator[str]:
    """With a sandbox that nobody runs, and a baseline `label` that selects it: all that conflicts take."""
    namespace = installation.plane.create_namespace("tenant")
    installation.plane.kubectl("label", "namespace", namespace, f"{label}=yes")
    installation.apply(
        a_pod("agent-0", namespace=namespace, sandbox="agent"),
        a_baseline(label, selector={label: "yes"}, audit=an_entry(order=5)),
    )
    installation.await_condition("csbp", label, "Programmed=False/NotConnected")
    yield namespace
    installation.plane.kubectl("delete", "namespace", namespace, "--wait=false")


def test_a_tenant_cannot_crowd_it_out_or_blind_it_and_need_not_know_its_keys_and_orders(
    team: Team, label: str
) -> None:
    installation = team.installation
    with _a_namespace(installation, label) as namespace:
        ten = {f"entry_{n}": an_entry(order=n) for n in range(10)}
        said = installation.refusal(a_policy("ten", namespace=namespace, **ten))
        assert "the same sandboxes would have 10 stages beside 1 of the platform's baseline" in said
        assert "at most 10 in all are allowed (keep to 9 for these sandboxes)" in said

        blind = a_policy("blind", namespace=namespace, mine=an_entry(include=["*.mine.test"]))
        said = installation.refusal(skipping(blind, "*.db.example.com"))
        assert (
            "spec.networkPolicies.database.endpoints[0].host: with tls: skip no middleware may select the host"
            in said
        )
        assert f"but audit of policy {label} does for the same sandboxes, for example" in said
        assert ".db.example.com (" in said.partition("for example")[2]
        installation.apply(skipping(blind, "db.mine.example"))

        nine = {"audit": an_entry(order=5), **{f"entry_{n}": an_entry(order=10 + n) for n in range(7)}}
        installation.apply(a_policy("alike", namespace=namespace, **nine))
        installation.await_condition("sbp", "alike", "Ready=True/Ready", namespace=namespace)


def test_a_baseline_asks_no_tenant_and_says_whom_it_breaks(team: Team, label: str) -> None:
    installation, plane = team.installation, team.installation.plane
    baseline = a_baseline(label, selector={label: "yes"}, audit=an_entry(include=["**.example.net"]))
    team.label(f"{label}=yes")
    one = a_policy("one", namespace=team.namespace, one=an_entry(order=21, include=["*.db.example.org"]))
    two = a_policy("two", namespace=team.namespace, two=an_entry(order=22, include=["a.db.example.org", "b.test"]))
    installation.apply(baseline, one, two)
    team.await_chain("platform:audit", "redact", "one", "two")
    assert post(team.proxy, "a.db.example.org", _KEY).body == "[REDACTED]"

    said = plane.kubectl("apply", "-f", "-", input=yaml.safe_dump(skipping(baseline, "a.db.example.org"))).stderr
    affected = (
        "spec: affects 2 of the tenants' policies, which would conflict with this baseline for the same sandboxes"
    )
    named = ", ".join(f"{team.namespace}/{name}" for name in ("one", "two"))
    assert f"Warning: {affected} and no longer run: {named}" in said
    closed = [f"{team.namespace}/{name}:{name} (Conflicted)" for name in ("one", "two")]
    team.await_chain("platform:audit", "redact", *closed)
    for name in ("one", "two"):
        installation.await_condition("sbp", name, "Ready=False/Conflicted", namespace=team.namespace)
    for host in ("a.db.example.org", "c.db.example.org", "b.test"):
        assert post(team.proxy, host, _KEY).status == 403
    assert post(team.proxy, "api.example.net", _KEY).body == "[REDACTED]"
    assert post(team.proxy, "api.example.com", _KEY).body == "[REDACTED]"
    assert installation.condition("csbp", label, "Ready") == "True/Ready"

    installation.apply(baseline)
    team.await_chain("platform:audit", "redact", "one", "two")
    installation.await_condition("sbp", "one", "Ready=True/Ready", namespace=team.namespace)
    plane.kubectl("delete", "sbp", "one", "two", "-n", team.namespace)


def test_the_newer_of_two_baselines_with_one_order_is_refused(team: Team, label: str) -> None:
    installation = team.installation
    with _a_namespace(installation, label):
        newer = a_baseline(f"z-{label}", selector={label: "yes"}, audit=an_entry(order=5))
        said = installation.refusal(newer)
        assert f'The ClusterSandboxPolicy "z-{label}" is invalid' in said
        used = f"already used for the same namespaces by policy {label}"
        assert f"spec.networkMiddlewares.audit.order: order 5 is {used} (choose another order)" in said
        assert f"spec.networkMiddlewares.audit: the key is {used} (rename the key)" in said
        installation.apply(a_baseline(f"z-{label}", selector={label: "yes"}, other=an_entry(order=6)))
        installation.apply(a_baseline(f"zz-{label}", selector={label: "no"}, audit=an_entry(order=5)))
        crowd = {f"more_{n}": an_entry(order=20 + n) for n in range(4)}
        said = installation.refusal(a_baseline(f"zzz-{label}", selector={label: "yes"}, **crowd))
        assert "with other baselines the same namespaces would have 6 baseline stages, 5 at most" in said


def test_its_revision_has_no_namespace_and_outlives_the_operator(team: Team, label: str) -> None:
    installation = team.installation
    installation.apply(a_baseline(label, selector={label: "yes"}))
    team.label(f"{label}=yes")
    installation.await_condition("csbp", label, _PROGRAMMED)
    before = installation.get("csbp", label)
    (revision,) = installation.revisions(of=before["metadata"]["uid"])
    policy = installation.get("prev", revision)["spec"]["policy"]
    assert (policy["kind"], policy["namespace"], policy["name"]) == ("ClusterSandboxPolicy", "", label)

    installation.operator.kill()
    assert post(team.proxy, "api.example.com", _KEY).body == "[REDACTED]"
    installation.start()
    installation.wait("the supervisor is connected", lambda: installation.connected() == 1)
    installation.await_condition("csbp", label, _PROGRAMMED)
    after = installation.get("csbp", label)
    assert after["status"]["accepted"] == before["status"]["accepted"]
    assert installation.revisions(of=before["metadata"]["uid"]) == [revision]
    assert team.chain() == ("platform:redact", "redact")


def test_a_deleted_baseline_leaves_after_its_grace(team: Team, label: str) -> None:
    installation, plane = team.installation, team.installation.plane
    installation.apply(a_baseline(label, selector={label: "yes"}))
    team.label(f"{label}=yes")
    team.await_chain("platform:redact", "redact")
    uid = installation.get("csbp", label)["metadata"]["uid"]
    plane.kubectl("delete", "csbp", label)
    assert team.chain() == ("platform:redact", "redact")
    team.await_chain("redact", seconds=40)
    installation.wait("its revisions are collected", lambda: not installation.revisions(of=uid))


def test_what_became_of_it_is_told_as_of_any_policy(team: Team, label: str) -> None:
    installation = team.installation
    installation.apply(a_baseline(label, selector={label: "yes"}))
    installation.await_condition("csbp", label, "Programmed=True/NoSandboxes")
    # Events about what has no namespace are kept in `default`.
    listing = ("get", "events.events.k8s.io", "-n", "default", "-o", "json")

    def told() -> list[tuple[str, str]]:
        items: list[Document] = json.loads(installation.plane.kubectl(*listing).stdout)["items"]
        regarding = ("ClusterSandboxPolicy", label)
        return [
            (e["type"], e["reason"]) for e in items if (e["regarding"]["kind"], e["regarding"]["name"]) == regarding
        ]

    installation.wait("it is told", lambda: told() == [("Normal", "Accepted")])
    assert f"ClusterSandboxPolicy {label}" in (installation.directory / "operator-audit.jsonl").read_text()
    shown = in_a_process("status", "--kubeconfig", installation.plane.kubeconfig)
    rows = [line.split() for line in shown.out.splitlines()]
    assert [label, "True", "True", "NoSandboxes", "1", "1", "0/0"] in rows
    assert [f"{team.namespace}/outbound", "True", "True", "Programmed", "1", "1", "1/1"] in rows

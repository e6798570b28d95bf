"""The webhook behind a real API server: when it is asked, races between objects, and the test that it is asked."""

import json
import threading
from collections.abc import Iterator

import pytest
import yaml

from e2e.controlplane.cluster import ControlPlane
from e2e.harness import LOOPBACK, OPERATOR_NAMESPACE, Installation, a_pod
from e2e.objects import Document, a_policy, a_registration, an_entry, changed
from e2e.services import Host, Scripted, a_manifest
from supervisor_middleware.model.sandbox import SELF_TEST_NAME

_MIDDLEWARES = "spec.networkMiddlewares"
_BREAK_GLASS = "middleware.openshell.io:break-glass"
_SELF_TEST = "webhook_selftest_success"


def _reviews(installation: Installation) -> float:
    """But for the self-tests, which are no create that anybody waits for."""
    lines = installation.operator.log.read_text().splitlines()
    return sum('"reviewed"' in line for line in lines)


def _apply(installation: Installation, document: Document, *more: str) -> str:
    result = installation.plane.kubectl("apply", *more, "-f", "-", input=yaml.safe_dump(document), check=False)
    return result.stdout + result.stderr


# ------------------------------------------------------------------------------------------------------ when it is asked


def test_metadata_status_and_an_unchanged_spec_are_not_reviewed(
    installation: Installation, control_plane: ControlPlane, namespace: str
) -> None:
    policy = a_policy("quiet", namespace=namespace)
    installation.apply(policy)
    installation.await_condition("sbp", "quiet", "Ready=True/Ready", namespace=namespace)
    before = _reviews(installation)
    control_plane.kubectl("label", "sbp", "quiet", "-n", namespace, "team=red")
    control_plane.kubectl("annotate", "sbp", "quiet", "-n", namespace, "note=seen")
    finalizers = json.dumps({"metadata": {"finalizers": ["example.com/keep"]}})
    control_plane.kubectl("patch", "sbp", "quiet", "-n", namespace, "--type=merge", "-p", finalizers)
    status = json.dumps({"status": {"bindingCount": 1}})
    control_plane.kubectl(
        "patch", "sbp", "quiet", "-n", namespace, "--subresource=status", "--type=merge", "-p", status
    )
    installation.apply(policy)
    installation.plane.kubectl(
        *("apply", "--server-side", "--force-conflicts", "-f", "-"), input=yaml.safe_dump(policy)
    )
    assert _reviews(installation) == before
    control_plane.kubectl(
        *("patch", "sbp", "quiet", "-n", namespace, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    )
    installation.apply(changed(policy, f"{_MIDDLEWARES}.redact.order", 3))
    assert _reviews(installation) == before + 1


def test_a_policy_admitted_long_ago_may_be_labelled_whatever_its_spec_has_become(
    installation: Installation, control_plane: ControlPlane, namespace: str
) -> None:
    """What is stored and no longer valid must not be locked against finalizers and labels."""
    mistaken = a_policy("stuck", namespace=namespace, one=an_entry("acme/nobody"))
    break_glass = control_plane.user_kubeconfig("saviour", ["system:masters", _BREAK_GLASS])
    control_plane.kubectl("apply", "-f", "-", input=yaml.safe_dump(mistaken), kubeconfig=break_glass)
    control_plane.kubectl("label", "sbp", "stuck", "-n", namespace, "team=red")
    installation.await_condition("sbp", "stuck", "Accepted=False/BindingNotFound", namespace=namespace)


def test_the_break_glass_group_alone_is_not_asked(
    installation: Installation, control_plane: ControlPlane, namespace: str
) -> None:
    mistaken = yaml.safe_dump(a_policy("urgent", namespace=namespace, one=an_entry("acme/nobody")))
    for groups, is_let_through in ((["system:masters"], False), (["system:masters", _BREAK_GLASS], True)):
        kubeconfig = control_plane.user_kubeconfig("somebody", groups)
        result = control_plane.kubectl("apply", "-f", "-", input=mistaken, check=False, kubeconfig=kubeconfig)
        assert (result.returncode == 0) is is_let_through, result.stderr


def test_while_no_replica_answers_writes_are_refused_and_deletions_and_labels_are_not(
    installation: Installation, control_plane: ControlPlane, namespace: str
) -> None:
    installation.apply(
        a_policy("one", namespace=namespace), a_policy("two", namespace=namespace, b=an_entry(order=9))
    )
    installation.operator.stop()
    try:
        assert "failed calling webhook" in installation.refusal(a_policy("new", namespace=namespace))
        control_plane.kubectl("label", "sbp", "one", "-n", namespace, "team=red")
        control_plane.kubectl("delete", "sbp", "two", "-n", namespace)
    finally:
        installation.start()


# ---------------------------------------------------------------------------------------------------------------- races


def test_a_policy_may_take_the_place_of_one_that_was_deleted_this_moment(
    installation: Installation, control_plane: ControlPlane, namespace: str
) -> None:
    installation.apply(a_pod("agent-0", namespace=namespace, sandbox="agent"))
    installation.apply(a_policy("round-0", namespace=namespace))
    for number in range(1, 6):
        installation.await_condition("sbp", f"round-{number - 1}", "Ready=True/Ready", namespace=namespace)
        control_plane.kubectl("delete", "sbp", f"round-{number - 1}", "-n", namespace)
        installation.apply(a_policy(f"round-{number}", namespace=namespace))


def test_a_registration_that_is_accepted_this_moment_is_found(
    installation: Installation, control_plane: ControlPlane, services: Host, namespace: str
) -> None:
    for number in range(3):
        binding, name = f"acme/new-{number}", f"new-{number}"
        service = services.serve(Scripted(a_manifest(binding)))
        try:
            installation.apply(a_registration(name, endpoint=service.endpoint))
            control_plane.kubectl("wait", "smw", name, "--for=condition=Ready", "--timeout=30s")
            installation.apply(a_policy(name, namespace=namespace, one=an_entry(binding, order=number)))
        finally:
            control_plane.kubectl("delete", "sbp", name, "-n", namespace, "--ignore-not-found")
            control_plane.kubectl("delete", "smw", name)


def test_of_two_that_conflict_and_come_at_once_the_older_is_accepted(
    installation: Installation, control_plane: ControlPlane, namespace: str
) -> None:
    installation.apply(a_pod("agent-0", namespace=namespace, sandbox="agent"))
    decided = 0
    for number in range(8):
        names = [f"pair-{number}-{which}" for which in ("a", "b")]
        documents = [yaml.safe_dump(a_policy(name, namespace=namespace)) for name in names]
        at_once = threading.Barrier(len(names))

        def create(document: str, at_once: threading.Barrier = at_once) -> None:
            at_once.wait()
            control_plane.kubectl("create", "-f", "-", input=document, check=False)

        threads = [threading.Thread(target=create, args=(document,)) for document in documents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stored = json.loads(control_plane.kubectl("get", "sbp", "-n", namespace, "-o", "json").stdout)["items"]
        assert stored, "one of them is admitted"
        stored.sort(key=lambda p: (p["metadata"]["creationTimestamp"], p["metadata"]["name"]))
        older, *newer = [p["metadata"]["name"] for p in stored]
        installation.await_condition("sbp", older, "Accepted=True/Accepted", namespace=namespace)
        for name in newer:
            installation.await_condition("sbp", name, "Accepted=False/Conflicted", namespace=namespace)
            decided += 1
        control_plane.kubectl("delete", "sbp", "--all", "-n", namespace)
    assert decided, "they never met: the race was not one"


# ------------------------------------------------------------------------------------------------- the test of its own


@pytest.fixture
def broken_trust(installation: Installation, control_plane: ControlPlane) -> Iterator[None]:
    """The API server asks somebody else: nobody."""

    def name(port: int) -> None:
        url = f"https://{LOOPBACK}:{port}/validate"
        change = json.dumps([{"op": "replace", "path": "/webhooks/0/clientConfig/url", "value": url}])
        configuration = ("validatingwebhookconfiguration", f"supervisor-middleware-{OPERATOR_NAMESPACE}")
        control_plane.kubectl("patch", *configuration, "--type=json", "-p", change)

    name(1)
    yield
    name(installation.webhook_port)


def test_every_replica_tests_that_it_is_asked_and_stores_nothing(
    installation: Installation, control_plane: ControlPlane
) -> None:
    installation.wait("it was tested", lambda: installation.metrics().get(_SELF_TEST) == 1, seconds=60)
    assert installation.metrics()["webhook_selftest_timestamp_seconds"] > 0
    stored = control_plane.kubectl("get", "sbp", "-n", OPERATOR_NAMESPACE, "-o", "name").stdout
    assert SELF_TEST_NAME not in stored


def test_a_webhook_that_is_not_asked_shows_in_a_metric_and_not_in_readiness(
    installation: Installation, broken_trust: None
) -> None:
    installation.wait("it is noticed", lambda: installation.metrics().get(_SELF_TEST) == 0, seconds=120)
    assert "the API server does not ask this webhook" in installation.operator.log.read_text()
    from e2e.harness import read

    assert read(installation.health_port, "/readyz")[0] == 200

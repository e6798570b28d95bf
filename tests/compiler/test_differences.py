"""What changes for a sandbox between two generations, and what of it protects less."""

from datetime import timedelta

import pytest

from supervisor_middleware.compiler.differences import (
    Changed,
    Difference,
    FieldChange,
    HostChange,
    difference,
)
from supervisor_middleware.compiler.inspection import WorstCase
from supervisor_middleware.compiler.skipped import UNDECIDED
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.generation import Generation, Stage
from supervisor_middleware.model.host_sets import TooComplex
from supervisor_middleware.model.revision import Unresolved
from tests.builders import a_connection, a_generation, a_service, a_stage


def compared(before: Generation, after: Generation) -> Difference:
    found = difference(before, after)
    assert found is not None
    return found


def of(*stages: Stage) -> Generation:
    return Generation(stages=stages)


def test_equal_generations_do_not_differ() -> None:
    assert difference(a_generation(), a_generation()) is None


def test_stages_come_and_go_by_their_keys() -> None:
    kept, gone, new = a_stage("kept"), a_stage("gone"), a_stage("new")
    found = compared(of(kept, gone), of(kept, new))
    assert (found.added, found.removed, found.changed) == ((new,), (gone,), ())
    assert (found.order_before, found.order_after) == ((), ())


def test_an_order_is_told_of_the_stages_that_stay() -> None:
    one, two, three = a_stage("one"), a_stage("two"), a_stage("three")
    found = compared(of(one, two, three), of(three, one))
    assert (found.order_before, found.order_after) == (("one", "three"), ("three", "one"))


def test_each_field_is_told_and_a_config_only_as_a_digest() -> None:
    before = a_stage(config={"token": "hunter2"}, service=None)
    after = a_stage(
        policy="team-b/other",
        binding="acme/other",
        service="other",
        config={"token": "hunter3"},
        include=["a.com"],
        exclude=["b.com"],
        max_body_bytes=1,
        timeout=timedelta(seconds=1),
    )
    found = compared(of(before), of(after))
    (changed,) = found.changed
    assert [c.field for c in changed.fields] == [
        "policy",
        "middleware",
        "service",
        "include",
        "exclude",
        "config",
        "maxBodyBytes",
        "timeout",
    ]
    assert "hunter" not in repr([(c.before, c.after) for c in changed.fields])
    assert ("exclude", "none", "b.com") in [(c.field, c.before, c.after) for c in changed.fields]
    assert not changed.is_weakened


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (OnError.FAIL_CLOSED, OnError.FAIL_OPEN, True),
        (OnError.FAIL_OPEN, OnError.FAIL_CLOSED, False),
    ],
)
def test_an_on_error_that_opens_is_a_loss(*, before: OnError, after: OnError, expected: bool) -> None:
    found = compared(of(a_stage(on_error=before)), of(a_stage(on_error=after)))
    assert found.changed == (
        Changed(name="redact", fields=(FieldChange(field="onError", before=before.value, after=after.value),)),
    )
    assert found.is_loss is expected


def test_a_host_that_is_no_longer_looked_at_is_named_for_the_chain_and_for_the_binding() -> None:
    before = of(a_stage("a", include=["*.a.com"]), a_stage("b", binding="acme/b", include=["b.com"]))
    after = of(a_stage("a", include=["*.a.com"], exclude=["old.a.com"]), a_stage("b", include=["b.com", "c.com"]))
    found = compared(before, after)
    assert found.lost == (
        HostChange(host="old.a.com"),
        HostChange(host="b.com", binding="acme/b"),
        HostChange(host="old.a.com", binding="acme/redactor"),
    )
    assert found.gained == (HostChange(host="c.com"), HostChange(host="b.com", binding="acme/redactor"))
    assert found.is_loss


def test_a_host_that_is_refused_instead_is_not_lost_and_one_that_is_bypassed_is() -> None:
    before = of(a_stage(include=["a.com"]))
    assert compared(before, of(a_stage(include=["a.com"], unresolved=Unresolved.CONFLICTED))).lost == ()
    bypassed = a_stage(include=["a.com"], unresolved=Unresolved.CONFLICTED, on_error=OnError.FAIL_OPEN)
    assert HostChange(host="a.com") in compared(before, of(bypassed)).lost


def test_what_cannot_be_decided_is_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def undecided(**_: object) -> str | None:
        raise TooComplex("too many wildcards")

    monkeypatch.setattr("supervisor_middleware.compiler.differences.lost_host", undecided)
    found = compared(of(a_stage(include=["a.com"])), of(a_stage(include=["b.com"])))
    assert HostChange(host=UNDECIDED) in found.lost
    assert found.is_loss


def test_services_that_begin_and_cease_to_receive_content_are_told() -> None:
    one, two = a_service("one"), a_service("two")
    before, after = Generation(services=(one,)), Generation(services=(two,))
    found = compared(before, after)
    assert (found.new_services, found.gone_services, found.changed_services) == ((two,), (one,), ())


def test_a_service_that_is_somewhere_else_is_told() -> None:
    before = Generation(services=(a_service(),))
    moved = a_connection("https://elsewhere.example:443", ca_bundle_pem="PEM", server_name="other")
    found = compared(before, Generation(services=(a_service(connection=moved),)))
    (changed,) = found.changed_services
    assert [c.field for c in changed.fields] == ["endpoint", "caBundle", "serverName"]
    assert "PEM" not in repr(changed)


def test_how_long_requests_may_wait_and_how_long_a_service_is_waited_for_are_told() -> None:
    before = of(a_stage(include=["a.com"]))
    after = of(a_stage(include=["a.com"]), a_stage("more", include=["a.com"]))
    found = compared(before, after)
    assert (found.latency_before, found.latency_after) == (
        WorstCase(time=timedelta(milliseconds=500), host="a.com"),
        WorstCase(time=timedelta(seconds=1), host="a.com"),
    )
    assert not found.is_loss
    services = (a_service(), a_service(activation_deadline=timedelta(minutes=2)))
    (changed,) = compared(*(Generation(services=(s,)) for s in services)).changed_services
    assert changed.fields == (FieldChange(field="activationDeadline", before="none", after="120s"),)

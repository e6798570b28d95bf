"""What the webhook answers: golden cases read as sentences; the rest of the edge from here on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor_middleware.control.acceptances import acceptance_of
from supervisor_middleware.control.admission import decide_review, decision_of
from supervisor_middleware.control.decisions import decide_registry
from supervisor_middleware.control.reviews import ALLOWED, Decision, Operation, Review, parse_review, response
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.snapshot import Kind, Snapshot
from supervisor_middleware.model.verdict import Described
from supervisor_middleware.model.violation import Advice, Reason, Subject, Violation, report
from supervisor_middleware.registry.catalog import Catalog
from tests.builders import NOW, a_binding, a_manifest, a_registration, an_accepted_registration, some_settings
from tests.control.admission_world import admission_review, answer

FOLDER = Path(__file__).parents[1] / "golden" / "admission"
CASES = sorted(path.name.removesuffix(".in.yaml") for path in FOLDER.glob("*.in.yaml"))
SUBJECT = Subject(kind="SandboxPolicy", namespace="team-a", name="redaction")


@pytest.mark.parametrize("case", CASES)
def test_review_is_answered_as_recorded(case: str, pytestconfig: pytest.Config) -> None:
    found = yaml.safe_dump(
        answer(yaml.safe_load((FOLDER / f"{case}.in.yaml").read_text())),
        sort_keys=False,
        width=110,
        allow_unicode=True,
    )
    recorded = FOLDER / f"{case}.out.yaml"
    if pytestconfig.getoption("--rewrite-golden"):
        recorded.write_text(found)
    assert recorded.is_file(), "new case: run with --rewrite-golden and review the output"
    assert found == recorded.read_text()


def test_every_output_has_its_input() -> None:
    assert CASES
    assert {path.name.removesuffix(".out.yaml") for path in FOLDER.glob("*.out.yaml")} == set(CASES)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda p: p.name)
def test_no_config_value_is_repeated(path: Path) -> None:
    if path.name.endswith(".out.yaml"):
        assert "canary" not in path.read_text()


def a_body(**request: Any) -> dict[str, Any]:
    metadata = {"name": "redaction", "namespace": "team-a", "uid": "uid-1", "generation": 3}
    policy = {"kind": "SandboxPolicy", "metadata": metadata, "spec": {}}
    return admission_review({"operation": "CREATE", "object": policy, **request})


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        "text",
        {},
        {"request": {"uid": "1"}},
        {**a_body(), "apiVersion": "admission.k8s.io/v1beta1"},
        {**a_body(), "kind": "TokenReview"},
        {**a_body(), "request": []},
        a_body(uid=None),
        a_body(uid=""),
        a_body(uid="x" * 129),
        a_body(uid=1),
        a_body(operation="CONNECT"),
        a_body(operation=None),
        a_body(kind=None),
        a_body(kind="SandboxPolicy"),
        a_body(kind=["SandboxPolicy"]),
        a_body(kind={"kind": "Pod"}),
        a_body(object=None),
        a_body(object=[]),
        a_body(operation="DELETE"),
    ],
)
def test_what_is_no_review_of_ours_is_invalid(body: Any) -> None:
    with pytest.raises(InvalidInput):
        parse_review(body, now=NOW)


def test_a_review_is_read() -> None:
    review = parse_review(a_body(), now=NOW)
    assert (review.uid, review.operation, review.old) == ("review-1", Operation.CREATE, None)
    assert (review.stored.subject, review.stored.uid, review.stored.generation) == (SUBJECT, "uid-1", 3)
    assert review.stored.created_at == NOW


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "redaction", "generation": "x", "uid": None},
        {"name": "redaction", "generation": [], "creationTimestamp": "yesterday"},
        {"name": "redaction", "creationTimestamp": "2026-01-01"},
        {"generateName": "redaction"},
    ],
)
def test_odd_metadata_is_survived(metadata: Any) -> None:
    body = a_body(
        object={"kind": "SandboxPolicy", "metadata": metadata, "spec": {}, "status": []}, namespace="team-a"
    )
    review = parse_review(body, now=NOW)
    assert (review.stored.subject, review.stored.created_at) == (SUBJECT, NOW)


def test_a_forged_name_is_fit_for_a_log() -> None:
    name = "evil\n\x1b[31m" + "x" * 10_000
    body = a_body(object={"metadata": {"name": name}}, kind={"kind": "SandboxPolicy"}, namespace="a\nb")
    subject = parse_review(body, now=NOW).stored.subject
    assert subject.name.startswith("evil??[31mx")
    assert (len(subject.name), subject.namespace) == (253, "a?b")


def test_an_unchanged_spec_is_unchanged() -> None:
    policy = a_body()["request"]["object"]
    body = a_body(operation="UPDATE", oldObject={**policy, "metadata": {}})
    assert parse_review(body, now=NOW).is_unchanged


def test_allowed_says_nothing_more() -> None:
    assert response("1", ALLOWED)["response"] == {"uid": "1", "allowed": True}


def test_a_refusal_without_violations_names_no_object() -> None:
    body = response("1", Decision(is_allowed=False, is_retryable=True, message="later"))["response"]
    assert body["status"]["code"] == 503
    assert body["status"]["details"] == {"causes": []}


def test_long_answers_are_clipped() -> None:
    many = [
        Violation(subject=SUBJECT, path=f"spec.{n}", reason=Reason.MALFORMED, message="x" * 1000) for n in range(50)
    ]
    decision = decision_of(SUBJECT, report(many, [Advice(subject=SUBJECT, path="spec", message="y" * 400)]))
    assert len(decision.message) == 16_000
    assert [len(w) for w in decision.warnings] == [250]
    assert len(response("1", decision)["response"]["status"]["details"]["causes"]) == 32


def test_kinds_nobody_judges_are_allowed() -> None:
    for kind in (Kind.POLICY_REVISION, Kind.SANDBOX):
        made = answer({"review": {"operation": "CREATE", "object": {"kind": kind.value, "metadata": {}}}})
        assert made == {"asked": [], "response": {"uid": "review-1", "allowed": True}}


def test_a_registration_is_judged_by_all_its_service_offers_where_that_is_known() -> None:
    accepted = an_accepted_registration("acme")
    stored = replace(a_registration("acme"), status={"accepted": dict(accepted.to_json())})
    snapshot, catalog = Snapshot(registrations=(stored,)), Catalog()
    manifest = a_manifest(a_binding(), a_binding("acme/small", max_body_bytes=1024))
    catalog.described(accepted.connection, "acme", description=Described(manifest), now=NOW)
    acceptance = acceptance_of(snapshot)
    registry = decide_registry(snapshot, catalog, settings=some_settings(), acceptance=acceptance)
    listing = a_registration("acme", bindings=["acme/redactor", "acme/small"], generation=2)
    review = Review(uid="1", operation=Operation.UPDATE, stored=listing, old=stored)
    decision = decide_review(
        review, snapshot, acceptance=acceptance, registry=registry, verdicts={}, settings=some_settings()
    )
    assert [(v.path, v.reason) for v in decision.violations.violations] == [
        ("spec.maxBodyBytes", Reason.LIMIT_EXCEEDS_MANIFEST)
    ]
    assert "binding acme/small takes at most 1024 bytes" in decision.message

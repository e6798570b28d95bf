"""Whatever somebody typed: no exception, no echoed value, and as much read as can be."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.compiler.binding import Bindings, bind
from supervisor_middleware.compiler.composition import compose
from supervisor_middleware.compiler.pipeline import CompiledPolicy, compile_policy
from supervisor_middleware.compiler.registration import draft_registration, reference_of
from supervisor_middleware.compiler.structure import parse, path_of
from supervisor_middleware.model.generation import seal, unseal
from supervisor_middleware.model.policy_resources import SandboxPolicySpec
from supervisor_middleware.model.resources import SPECS
from supervisor_middleware.model.snapshot import POLICY_KINDS, BundleKey, Kind, Stored
from supervisor_middleware.model.violation import Reason, Report, Subject
from tests.builders import a_baseline, a_policy, a_registration, a_sandbox, an_accepted_registration, some_settings
from tests.compiler.strategies import json_values, nearly_policies, nearly_registrations

SUBJECT = Subject(kind="SandboxPolicy", namespace="team-a", name="redaction")
CANARY = "sk-canary-0123456789"

BINDINGS: Bindings = bind([an_accepted_registration()], some_settings().builtins)


def of_kind(kind: str, spec: Any) -> Stored:
    return a_policy(spec=spec) if kind == Kind.SANDBOX_POLICY else replace(a_baseline(), spec=spec)


def compiled(spec: Any, kind: str = Kind.SANDBOX_POLICY) -> CompiledPolicy:
    return compile_policy(of_kind(kind, spec), bindings=BINDINGS, verdicts={}, settings=some_settings())


def drafted(spec: Any) -> Report:
    stored = a_registration(spec=spec)
    key = reference_of(stored)
    bundles = {} if key is None else {key: "no PEM"}
    return draft_registration(stored, bundles=bundles, settings=some_settings())[1]


def text_of(report: Report) -> str:
    return "\n".join([*map(str, report.violations), *map(str, report.warnings)])


@pytest.mark.parametrize("kind", POLICY_KINDS)
@given(spec=json_values | nearly_policies)
def test_any_json_as_a_policy_gives_a_report_and_a_generation(kind: str, spec: Any) -> None:
    outcome = compiled(spec, kind)
    assert (outcome.revision is None) == bool(outcome.report.violations)
    running = outcome.revision or outcome.draft.as_unresolved()
    if running is not None:
        generation, _ = compose(
            a_sandbox(), [running], namespace_labels={}, bindings=BINDINGS, settings=some_settings()
        )
        sealed = seal(generation)
        assert unseal(sealed.payload, expected_digest=sealed.digest) == sealed


@given(json_values | nearly_registrations)
def test_any_json_as_a_registration_gives_a_report(spec: Any) -> None:
    draft, report = draft_registration(a_registration(spec=spec), bundles={}, settings=some_settings())
    assert (draft.connection is None) == bool(report.violations)


@given(nearly_policies)
def test_every_entry_stays_a_stage_or_shares_one(spec: dict[str, Any]) -> None:
    outcome = compiled(spec)
    running = outcome.revision or outcome.draft.as_unresolved()
    if running is not None and isinstance(spec.get("networkMiddlewares"), dict):
        assert len(running.entries) == len(spec["networkMiddlewares"])


def planted(value: Any) -> Any:
    """`value` with the canary in the place of every text and number."""
    if isinstance(value, dict):
        return {key: planted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [planted(item) for item in value]
    return CANARY if isinstance(value, str | float) else value


@given(st.data())
def test_no_value_is_ever_repeated(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(POLICY_KINDS))
    assert CANARY not in text_of(compiled(planted(data.draw(json_values | nearly_policies)), kind).report)
    assert CANARY not in text_of(drafted(planted(data.draw(json_values | nearly_registrations))))


@pytest.mark.parametrize("kind", SPECS)
@given(spec=json_values)
def test_every_kind_reports_instead_of_raising(kind: str, spec: Any) -> None:
    violations, wrong = parse(SPECS[kind], spec, subject=SUBJECT)
    assert bool(violations) == bool(wrong)


def test_a_deeply_nested_config_is_a_violation() -> None:
    config: dict[str, Any] = {}
    for _ in range(5000):
        config = {"a": config}
    outcome = compiled(
        {
            "sandboxSelector": {},
            "networkMiddlewares": {
                "a": {"middleware": "openshell/regex", "config": config, "endpoints": {"include": ["**"]}}
            },
        }
    )
    assert [v.reason for v in outcome.report.violations] == [Reason.TOO_LARGE]


@pytest.mark.parametrize(
    ("segments", "text"),
    [
        (("spec", "networkMiddlewares", "redact", "endpoints", "include", 0), "spec.networkMiddlewares.redact.endpoints.include[0]"),
        (("spec", "a.b"), 'spec["a.b"]'),
        (("spec", ""), 'spec[""]'),
        (("spec", "esc\x1b[31m"), 'spec["esc?[31m"]'),
        (("spec", "x" * 100), "spec." + "x" * 64),
        (("a",), "a"),
    ],
)  # fmt: skip
def test_a_path_reads_as_people_write_it(segments: tuple[str | int, ...], text: str) -> None:
    assert path_of(segments) == text


@pytest.mark.parametrize(
    ("spec", "path", "allowed"),
    [
        ({"sandboxSelectr": {}}, "spec.sandboxSelectr", "sandboxSelector"),
        ({"networkMiddlewares": {"endpoints": {"ordr": 1}}}, "spec.networkMiddlewares.endpoints.ordr", "order"),
        (
            {"networkMiddlewares": {"a": {"endpoints": {"includ": []}}}},
            "spec.networkMiddlewares.a.endpoints.includ",
            "include",
        ),
        (
            {"sandboxSelector": {"matchExpressions": [{"keys": "a"}]}},
            "spec.sandboxSelector.matchExpressions[0].keys",
            "key",
        ),
    ],
)
def test_an_unknown_field_is_answered_with_the_one_that_was_meant(spec: Any, path: str, allowed: str) -> None:
    violations, _ = parse(SandboxPolicySpec, spec, subject=SUBJECT)
    found = {v.path: v for v in violations}[path]
    assert found.reason is Reason.UNKNOWN_FIELD
    assert found.hint == f"did you mean {allowed}?"


def test_a_reference_to_a_bundle_is_found_in_what_was_typed() -> None:
    reference = {"kind": "Secret", "namespace": "team-a", "name": "ca"}
    assert reference_of(a_registration(tls={"caBundleRef": reference})) == BundleKey(
        "Secret", "team-a", "ca", "ca.crt"
    )
    for tls in (None, {}, 5, {"caBundleRef": "Secret"}):
        assert reference_of(a_registration(tls=tls)) is None
    stored: Stored = a_registration(spec=[])
    assert reference_of(stored) is None

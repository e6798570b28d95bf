"""What goldens do not show of policies: questions, verdicts, stability, and states that cannot be."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.compiler.binding import bind
from supervisor_middleware.compiler.drafts import draft_policy
from supervisor_middleware.compiler.pipeline import CompiledPolicy, _entry, _revision, compile_policy
from supervisor_middleware.compiler.questions import questions
from supervisor_middleware.errors import Bug
from supervisor_middleware.model.limits import MAX_REVISION_BYTES
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.snapshot import Stored
from supervisor_middleware.model.verdict import Accepted, Outage, Unreachable, Verdict
from supervisor_middleware.model.violation import Reason
from tests.builders import (
    REGEX,
    a_binding,
    a_connection,
    a_manifest,
    a_policy,
    an_accepted_registration,
    an_entry_spec,
    some_settings,
)

BINDINGS = bind([an_accepted_registration()], some_settings().builtins)


def compiled(stored: Stored, verdict: Verdict | None = None, *, accepted: Revision | None = None) -> CompiledPolicy:
    draft, _ = draft_policy(stored)
    verdicts = {} if verdict is None else {q.key: verdict for q in questions(draft, BINDINGS)}
    return compile_policy(stored, bindings=BINDINGS, verdicts=verdicts, settings=some_settings(), accepted=accepted)


def accepted(stored: Stored) -> Revision:
    revision = compiled(stored, Accepted()).revision
    assert revision is not None
    return revision


def test_equal_questions_are_asked_once() -> None:
    draft, _ = draft_policy(
        a_policy(
            entries={
                "a": an_entry_spec(order=1, config={"x": 1, "y": 2}),
                "b": an_entry_spec(order=2, config={"y": 2.0, "x": 1.0}),
                "c": an_entry_spec(order=3, config={"x": 2}),
                "d": an_entry_spec(REGEX, order=4),
            }
        )
    )
    asked = questions(draft, BINDINGS)
    assert [(q.key.binding, q.service) for q in asked] == [
        ("acme/redactor", "service acme"),
        ("acme/redactor", "service acme"),
        (REGEX, f"built-in {REGEX}"),
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"middleware": "acme/unknown"},
        {"middleware": "a//b"},
        {"config": {"n": 2**53 + 1}},
        {"config": {"t": "x" * 65536}},
        {"config": 5},
    ],
)
def test_there_is_no_question_where_nobody_or_nothing_can_be_asked(fields: dict[str, Any]) -> None:
    draft, _ = draft_policy(a_policy(**fields))
    assert questions(draft, BINDINGS) == ()


def test_a_question_never_asked_counts_as_unreachable() -> None:
    outcome = compiled(a_policy())
    assert [v.reason for v in outcome.report.violations] == [Reason.SERVICE_UNREACHABLE]
    assert outcome.report.is_retryable


@pytest.mark.parametrize("verdict", [None, Unreachable(Outage.DEADLINE_EXCEEDED)], ids=["never asked", "unreachable"])
def test_an_outage_takes_nothing_that_was_accepted(verdict: Verdict | None) -> None:
    stored = a_policy(config={"pii": "redact"})
    assert compiled(stored, verdict, accepted=accepted(stored)).report.is_valid


@pytest.mark.parametrize(
    "other",
    [
        an_accepted_registration(connection=a_connection("https://elsewhere.test:443")),
        an_accepted_registration(manifest=a_manifest(a_binding(timeout="1s"))),
    ],
    ids=["endpoint", "manifest"],
)
def test_a_verdict_is_about_one_endpoint_and_one_manifest(other: Any) -> None:
    stored = a_policy()
    outcome = compile_policy(
        stored, bindings=bind([other], ()), verdicts={}, settings=some_settings(), accepted=accepted(stored)
    )
    assert [v.reason for v in outcome.report.violations] == [Reason.SERVICE_UNREACHABLE]


configs = st.dictionaries(st.text(max_size=4), st.integers(-9, 9) | st.text(max_size=4) | st.none(), max_size=5)


@given(st.lists(configs, min_size=2, max_size=5))
def test_a_revision_does_not_depend_on_the_order_of_keys(found: list[dict[str, Any]]) -> None:
    entries = {f"k{n}": an_entry_spec(order=n, config=config) for n, config in enumerate(found)}
    turned = {
        k: {**dict(reversed(e.items())), "config": dict(reversed(e["config"].items()))}
        for k, e in reversed(entries.items())
    }
    assert accepted(a_policy(entries=entries)).digest == accepted(a_policy(entries=turned)).digest


def test_the_order_typed_in_a_selector_does_not_matter() -> None:
    one = {
        "matchLabels": {"a": "1", "b": "2"},
        "matchExpressions": [{"key": "c", "operator": "In", "values": ["x", "y"]}],
    }
    two = {
        "matchExpressions": [{"values": ["y", "x"], "operator": "In", "key": "c"}],
        "matchLabels": {"b": "2", "a": "1"},
    }
    assert accepted(a_policy(selector=one)).digest == accepted(a_policy(selector=two)).digest


def test_a_policy_without_violations_that_cannot_be_read_is_a_bug() -> None:
    draft, _ = draft_policy(a_policy())
    with pytest.raises(Bug):
        _revision(replace(draft, selector=None), BINDINGS)
    with pytest.raises(Bug):
        _entry(replace(draft.entries[0], include=None), BINDINGS)


def test_a_verdict_of_another_kind_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        compiled(a_policy(), "yes")  # type: ignore[arg-type]


def test_a_revision_may_have_900_kib_and_not_a_byte_more() -> None:
    def found(size: int, more: str) -> CompiledPolicy:
        """Short in protobuf and long in canonical JSON, where a control character is written as six."""
        texts = ["\x01" * length for length in (size, *[16_000] * 9)]
        entries = {f"k{n:02}": an_entry_spec(order=n, config={"t": text}) for n, text in enumerate(texts)}
        entries["k01"]["name"] = "n" + more
        return compiled(a_policy(entries=entries), Accepted())

    smallest = found(0, "").revision
    assert smallest is not None
    size, rest = divmod(MAX_REVISION_BYTES - smallest.size, 6)
    largest = found(size, "x" * rest)
    assert largest.revision is not None
    assert largest.revision.size == MAX_REVISION_BYTES
    one_more = found(size, "x" * (rest + 1)).report.violations
    assert [(v.path, v.reason) for v in one_more] == [("spec", Reason.TOO_LARGE)]
    assert f"{MAX_REVISION_BYTES + 1} bytes" in one_more[0].message


@pytest.mark.parametrize(
    "hostile", ["\x1b[31mred", "a\n::error::b", "\u202eevil", "\x9bx", "\u2028x", "a\tb", "\ufeff"]
)
def test_nothing_that_is_said_of_a_policy_holds_what_a_terminal_or_a_log_would_obey(hostile: str) -> None:
    entry = {**an_entry_spec(hostile, include=[hostile], name=hostile, config={hostile: hostile}), hostile: 1}
    other = an_entry_spec(REGEX, include=["**"], config={hostile: hostile, "p": 1.5})
    endpoint = {"host": hostile, "tls": "skip", "protocol": hostile, hostile: hostile}
    spec = {
        "sandboxSelector": {"matchLabels": {hostile: hostile}, hostile: 1},
        "networkMiddlewares": {hostile: entry, "k": other},
        "networkPolicies": {hostile: {"endpoints": [endpoint, {"host": "x.test", "tls": "skip"}]}},
        hostile: {hostile: hostile},
    }
    found = compiled(a_policy(spec=spec), Accepted()).report
    assert found.violations
    assert [str(said) for said in (*found.violations, *found.warnings) if not str(said).isprintable()] == []

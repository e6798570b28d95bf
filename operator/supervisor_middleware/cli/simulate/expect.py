"""What a case expects beside what came of it. PURE."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from supervisor_middleware.audit.events import Bypassed
from supervisor_middleware.cli.simulate.cases import CaseSpec, ExpectSpec
from supervisor_middleware.cli.simulate.trace import Trace, header_values
from supervisor_middleware.compiler.structure import path_of
from supervisor_middleware.model.evaluation import Decision
from supervisor_middleware.model.generation import Generation
from supervisor_middleware.supervisor.exchange import Denied

NOTHING: Final = "-"
"""In place of what is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field of a case that did not come true. `is_content`: its sides are content, which is not shown unasked."""

    path: str
    expected: str
    actual: str
    is_content: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A trace in the words of a case."""

    decision: Decision
    reason: str
    by: str
    reason_code: str
    code: str
    stages: tuple[str, ...]
    bypassed: tuple[str, ...]
    findings: tuple[str, ...]


def seen(trace: Trace) -> Seen:
    """What became of a request, as `expect` names it."""
    outcome = trace.outcome
    is_denied = isinstance(outcome, Denied)
    return Seen(
        decision=Decision.DENY if is_denied else Decision.ALLOW,
        reason=outcome.cause.value if isinstance(outcome, Denied) else "",
        by=outcome.key if isinstance(outcome, Denied) else "",
        reason_code=outcome.reason_code if isinstance(outcome, Denied) else "",
        code=outcome.code.value if isinstance(outcome, Denied) and outcome.code is not None else "",
        stages=tuple(t.stage.key for t in trace.turns),
        bypassed=tuple(e.stage.key for e in outcome.events if isinstance(e, Bypassed)),
        findings=tuple(
            sorted({f.type for t in trace.turns if t.is_valid and t.result is not None for f in t.result.findings})
        ),
    )


def differences(case: CaseSpec, trace: Trace, generation: Generation) -> tuple[Difference, ...]:
    """Everything that is not as expected, in the order of the fields."""
    expect, found = case.expect, seen(trace)
    return (
        *_unasked(case, generation),
        *_plain("decision", expect.decision, found.decision.value),
        *_plain("reason", expect.reason, found.reason),
        *_plain("by", expect.by, found.by),
        *_plain("reasonCode", expect.reason_code, found.reason_code),
        *_plain("code", expect.code, found.code),
        *_listed("stages", expect.stages, found.stages),
        *_listed("bypassed", expect.bypassed, found.bypassed),
        *_body(expect, trace),
        *_headers(expect, trace),
        *_listed("findings", None if expect.findings is None else sorted(set(expect.findings)), found.findings),
    )


def _unasked(case: CaseSpec, generation: Generation) -> Iterator[Difference]:
    """An answer that nobody asks for is a slip of the pen, or of the policy."""
    known = {s.key for s in generation.stages} | {s.binding for s in generation.stages}
    for name in case.answers:
        if name not in known:
            yield Difference(
                path=path_of(("answers", name)),
                expected="a stage or a binding of this sandbox",
                actual=f"there are {_joined(sorted(known))}" if known else "it has none",
            )


def _plain(name: str, expected: str | None, actual: str) -> Iterator[Difference]:
    if expected is not None and expected != actual:
        yield Difference(path=f"expect.{name}", expected=expected or NOTHING, actual=actual or NOTHING)


def _listed(name: str, expected: Iterable[str] | None, actual: Iterable[str]) -> Iterator[Difference]:
    if expected is not None and tuple(expected) != tuple(actual):
        yield Difference(path=f"expect.{name}", expected=_joined(expected), actual=_joined(actual))


def _body(expect: ExpectSpec, trace: Trace) -> Iterator[Difference]:
    if expect.body is None and expect.body_contains is None:
        return
    body = None if trace.upstream is None else trace.upstream.body
    if expect.body is not None and body != expect.body.encode():
        yield _content("expect.body", expect.body, body)
    if expect.body_contains is not None and (body is None or expect.body_contains.encode() not in body):
        yield _content("expect.bodyContains", expect.body_contains, body)


def _content(path: str, expected: str, body: bytes | None) -> Difference:
    if body is None:
        return Difference(path=path, expected="a request that goes on", actual="it was refused")
    return Difference(path=path, expected=expected, actual=body.decode("utf-8", "replace"), is_content=True)


def _headers(expect: ExpectSpec, trace: Trace) -> Iterator[Difference]:
    if not expect.headers:
        return
    if trace.upstream is None:
        yield Difference(path="expect.headers", expected="a request that goes on", actual="it was refused")
        return
    values = header_values(trace.upstream.headers)
    for name, expected in expect.headers.items():
        actual = values.get(name.lower())
        path = path_of(("expect", "headers", name))
        if actual == expected:
            continue
        if actual is None or expected is None:
            yield Difference(path=path, expected=_presence(expected), actual=_presence(actual))
        else:
            yield Difference(path=path, expected=expected, actual=actual, is_content=True)


def _presence(value: str | None) -> str:
    return "absent" if value is None else "present"


def _joined(items: Iterable[str]) -> str:
    return ", ".join(items) or NOTHING

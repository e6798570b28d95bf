"""One request through a generation's chain, stage by stage, with the supervisor's own fold and runner.

Reads the request as the proxy reads it, selects the chain as it does, and writes down every turn. Who answers for a
stage is the caller's choice; time is virtual, so that a case gives the same result on every machine.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Final, TypeAlias

from supervisor_middleware.audit.events import Bypassed, Failed, Invoked
from supervisor_middleware.cli.simulate.cases import RequestSpec
from supervisor_middleware.model.evaluation import (
    Decision,
    Evaluation,
    FailureCode,
    Header,
    RequestContext,
    Result,
)
from supervisor_middleware.model.generation import Generation, Stage
from supervisor_middleware.supervisor.chain import body_cap, uninspectable
from supervisor_middleware.supervisor.exchange import (
    Allowed,
    Body,
    Cause,
    Denied,
    Outcome,
    Overflowed,
    Request,
    Whole,
)
from supervisor_middleware.supervisor.headers import apply, is_protected, nominated_by, validate, visible
from supervisor_middleware.supervisor.http_request import (
    Framing,
    RequestHead,
    UnmatchableHost,
    encode_value,
    known_body,
    parse_head,
)
from supervisor_middleware.supervisor.runner import StageCaller, run_chain

REQUEST_ID: Final = "simulated"
_LENGTH: Final = "content-length"


class Source(StrEnum):
    """Who answered for a stage."""

    BUILTIN = "built-in"
    GIVEN = "answer given"
    MISSING = "no answer given"
    SERVICE = "service"


class Clock:
    """A clock that only moves when it is told to."""

    def __init__(self) -> None:
        self._now = timedelta(0)

    def __call__(self) -> float:
        """Seconds since the request began."""
        return self._now.total_seconds()

    def advance(self, by: timedelta) -> None:
        """So much later."""
        self._now += by


Choose: TypeAlias = Callable[[Stage], tuple[StageCaller, Source]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a stage was shown and what came of it. Never asked: `source` is None; not reached: `event` is None too."""

    stage: Stage
    source: Source | None = None
    event: Invoked | Failed | Bypassed | None = None
    shown: Evaluation | None = field(default=None, repr=False)
    result: Result | None = field(default=None, repr=False)
    added: tuple[Header, ...] = field(default=(), repr=False)
    removed: tuple[Header, ...] = field(default=(), repr=False)

    @property
    def is_valid(self) -> bool:
        """Whether the stage's answer counts."""
        return isinstance(self.event, Invoked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The request that goes on."""

    headers: tuple[Header, ...] = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A request and what became of it. `upstream` None: it was refused."""

    method: str
    url: str = field(repr=False)
    sandbox: str
    turns: tuple[Turn, ...]
    outcome: Outcome
    body: bytes = field(repr=False)
    upstream: Upstream | None = None


async def trace(
    spec: RequestSpec,
    generation: Generation,
    *,
    content: bytes | None,
    sandbox: str,
    sandbox_id: str,
    choose: Choose,
    clock: Clock,
) -> Trace:
    """What `generation` makes of the request with `content` as its body.

    `sandbox` is for people, `sandbox_id` what services are told.
    """
    method = spec.method or ("GET" if content is None else "POST")
    url = f"{spec.scheme}://{spec.host}{spec.path}"
    body = content or b""
    try:
        head = _head(spec, method=method, content=content)
    except UnmatchableHost:
        refused = Denied(cause=Cause.FAILED, code=FailureCode.UNINSPECTABLE)
        return Trace(method=method, url=url, sandbox=sandbox, turns=(), outcome=refused, body=body)
    stages = generation.chain_for(head.target.host)
    recorder = _Recorder(choose)
    context = RequestContext(request_id=REQUEST_ID, sandbox_id=sandbox_id)
    outcome = await _outcome(stages, head, body=body, context=context, recorder=recorder, clock=clock)
    return Trace(
        method=method,
        url=url,
        sandbox=sandbox,
        turns=recorder.turns(stages, outcome),
        outcome=outcome,
        body=body,
        upstream=_upstream(head, body, outcome, is_inspected=bool(stages)),
    )


async def _outcome(
    stages: tuple[Stage, ...],
    head: RequestHead,
    *,
    body: bytes,
    context: RequestContext,
    recorder: "_Recorder",
    clock: Clock,
) -> Outcome:
    if not stages:
        return Allowed()
    if head.framing is Framing.OPAQUE:
        return uninspectable(stages, context=context, target=head.target)
    request = Request(context=context, target=head.target, headers=head.headers, body=_body(head, body, stages))
    return await run_chain(stages, request, caller_of=recorder.caller_of, clock=clock)


def _body(head: RequestHead, body: bytes, stages: tuple[Stage, ...]) -> Body:
    cap = body_cap(stages)
    known = known_body(head, cap=cap)
    if known is not None:
        return known
    return Whole(body) if len(body) <= cap else Overflowed()


def _head(spec: RequestSpec, *, method: str, content: bytes | None) -> RequestHead:
    """The request as a client would send it and Envoy would hand it over."""
    lines = [
        Header(name.lower(), value)
        for name, values in spec.headers.items()
        for value in ([values] if isinstance(values, str) else values)
    ]
    names = {line.name for line in lines}
    if content is not None and not names & {_LENGTH, "transfer-encoding"}:
        lines.append(Header(_LENGTH, str(len(content))))
    is_upgrade = "upgrade" in names & nominated_by(lines)
    pseudo = ((":authority", spec.host), (":scheme", spec.scheme), (":method", method), (":path", spec.path))
    return parse_head(
        [*((n, v.encode()) for n, v in pseudo), *((h.name, encode_value(h.value)) for h in lines)],
        end_of_stream=content is None and not is_upgrade,
    )


def _upstream(head: RequestHead, body: bytes, outcome: Outcome, *, is_inspected: bool) -> Upstream | None:
    match outcome:
        case Denied():
            return None
        case Allowed() if not is_inspected:
            return Upstream(headers=head.headers, body=body)
        case Allowed():
            # RFC 9110 section 7.6.1, as the proxy does: what Connection nominates ends here.
            gone = {name for name in nominated_by(head.headers) if not is_protected(name)}
            headers = tuple(h for h in apply(outcome.mutations, head.headers) if h.name.lower() not in gone)
            if outcome.body is None:
                return Upstream(headers=headers, body=body)
            length = str(len(outcome.body))
            measured = tuple(replace(h, value=length) if h.name == _LENGTH else h for h in headers)
            return Upstream(headers=measured, body=outcome.body)


class _Recorder:
    """Stands between the runner and whoever answers, and writes down both sides."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._turns: dict[str, Turn] = {}

    def caller_of(self, stage: Stage) -> StageCaller:
        caller, source = self._choose(stage)
        self._turns[stage.key] = Turn(stage=stage, source=source)
        return _Recording(self, caller)

    def note(self, stage: Stage, *, shown: Evaluation, result: Result | None) -> None:
        self._turns[stage.key] = replace(self._turns[stage.key], shown=shown, result=result)

    def turns(self, stages: Iterable[Stage], outcome: Outcome) -> tuple[Turn, ...]:
        """Every stage of the chain in order, with what became of it."""
        events = {e.stage.key: e for e in outcome.events if isinstance(e, Invoked | Failed | Bypassed)}
        turns = (self._turns.get(s.key, Turn(stage=s)) for s in stages)
        return tuple(_with_changes(replace(t, event=events.get(t.stage.key))) for t in turns)


class _Recording:
    def __init__(self, recorder: _Recorder, caller: StageCaller) -> None:
        self._recorder = recorder
        self._caller = caller

    async def evaluate(self, stage: Stage, evaluation: Evaluation, *, deadline: timedelta) -> Result:
        self._recorder.note(stage, shown=evaluation, result=None)
        result = await self._caller.evaluate(stage, evaluation, deadline=deadline)
        self._recorder.note(stage, shown=evaluation, result=result)
        return result


def _with_changes(turn: Turn) -> Turn:
    if turn.shown is None or turn.result is None or not turn.is_valid or turn.result.decision is Decision.DENY:
        return turn
    # It was valid with the request's own nominated names, so it is without them.
    mutations = validate(turn.result.mutations, nominated=frozenset())
    if isinstance(mutations, FailureCode):
        return turn
    before = visible(turn.shown.headers)
    after = apply(mutations, before)
    return replace(turn, added=_without(after, before), removed=_without(before, after))


def _without(headers: Iterable[Header], others: Iterable[Header]) -> tuple[Header, ...]:
    """The lines that are not among `others`, as often as they are not."""
    left = Counter(others)
    rest: list[Header] = []
    for header in headers:
        if left[header]:
            left[header] -= 1
        else:
            rest.append(header)
    return tuple(rest)


def header_values(headers: Iterable[Header]) -> Mapping[str, str]:
    """By name, several lines of one name joined as HTTP joins them."""
    values: dict[str, list[str]] = {}
    for header in headers:
        values.setdefault(header.name.lower(), []).append(header.value)
    return {name: ", ".join(found) for name, found in values.items()}

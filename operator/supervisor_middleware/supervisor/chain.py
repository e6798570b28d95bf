"""The chain: a fold over one request representation. PURE: no await, no clock, no gRPC.

Owns RFC 0009 "Middleware ordering" and the failure rules around it: what each stage is shown, what its answer does
to the request, when the chain stops, and every event on the way. The caller does the asking: it takes an `Ask`, gets
an answer by whatever means, and hands it to `resume` until an `Outcome` comes back.

The rules:
- Stages run in the order given, each once; a later one sees what earlier ones accepted.
- DENY is final, whatever the stage's `on_error` and whatever else is wrong with the answer.
- A failed FailClosed stage denies; a failed FailOpen stage changes nothing and leaves a `Bypassed` event.
- Nothing that cannot be shown to a required stage goes on.

Callers: `runner`, for the proxy; `ext_proc`, for what no stage can be shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TypeAlias, assert_never

from supervisor_middleware.audit.events import Bypassed, Event, Failed, Invoked
from supervisor_middleware.model.evaluation import (
    Decision,
    Evaluation,
    FailureCode,
    Header,
    HeaderMutation,
    OnError,
    RequestContext,
    Result,
    Target,
)
from supervisor_middleware.model.generation import Stage, is_too_long
from supervisor_middleware.model.identifiers import is_reason_code
from supervisor_middleware.model.limits import CHAIN_TIMEOUT
from supervisor_middleware.supervisor import headers as header_rules
from supervisor_middleware.supervisor.envelope import body_limit, request_breach
from supervisor_middleware.supervisor.exchange import (
    Allowed,
    Cause,
    Denied,
    Outcome,
    Overflowed,
    Request,
    Unread,
    Whole,
)
from supervisor_middleware.supervisor.findings import found
from supervisor_middleware.supervisor.unseen import (
    NO_TIME,
    pass_unseen,
    refuse_overflowed,
    refuse_too_long,
    stage_ref,
)
from supervisor_middleware.wire.result_limits import answer_breaches, observation_breaches


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the fold has come. Opaque to callers: they only hand it back inside its `Ask`.

    `stages[0]` is the stage that is asked; `headers` are the visible ones, already mutated.
    """

    stages: tuple[Stage, ...]
    context: RequestContext
    target: Target
    headers: tuple[Header, ...] = field(repr=False)
    nominated: frozenset[str]
    body: bytes = field(repr=False)
    replacement: bytes | None = field(default=None, repr=False)
    mutations: tuple[HeaderMutation, ...] = field(default=(), repr=False)
    metadata: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    remaining: timedelta = CHAIN_TIMEOUT
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Ask `stage` for its result of `evaluation`, within `deadline`."""

    stage: Stage
    evaluation: Evaluation
    deadline: timedelta
    state: Progress = field(repr=False)


Step: TypeAlias = Ask | Outcome
Answer: TypeAlias = Result | FailureCode


def begin(stages: tuple[Stage, ...], request: Request) -> Step:
    """The first step of a request through the chain selected for its host."""
    if is_too_long(stages):
        return refuse_too_long(stages, request.context, request.target)
    match request.body:
        case Whole(data):
            return _advance(_start(stages, request, data))
        case Unread():
            return pass_unseen(stages, request.context, request.target, code_of=_unread_code)
        case Overflowed():
            return refuse_overflowed(stages, request.context, request.target)
        case _:
            assert_never(request.body)


def resume(ask: Ask, answer: Answer, *, latency: timedelta) -> Step:
    """The next step, now that the asked stage answered (or failed for the reason given) after `latency`."""
    latency = max(latency, NO_TIME)
    progress = replace(ask.state, remaining=ask.state.remaining - latency)
    match answer:
        case FailureCode():
            return _go_on(_failed(progress, _blamed(answer, ask), latency=latency))
        case Result(decision=Decision.DENY):
            return _denied(progress, answer, latency=latency)
        case Result():
            return _go_on(_allowed(progress, answer, latency=latency))
        case _:
            assert_never(answer)


def uninspectable(stages: tuple[Stage, ...], *, context: RequestContext, target: Target) -> Outcome:
    """What becomes of traffic that no stage can be shown (opaque TCP, HTTP/2, an upgrade).

    RFC 0009 "Operation phases and placement": any matching FailClosed stage denies; if all are FailOpen, it is
    relayed with a finding for each.
    """
    if is_too_long(stages):
        return refuse_too_long(stages, context, target)
    return pass_unseen(stages, context, target, code_of=lambda _: FailureCode.UNINSPECTABLE)


def body_cap(stages: tuple[Stage, ...]) -> int:
    """How much of a body to buffer for this chain: the largest resolved stage's limit, 0 when no stage can run."""
    return max((body_limit(s) for s in stages if s.unresolved is None), default=0)


def _start(stages: tuple[Stage, ...], request: Request, body: bytes) -> Progress:
    return Progress(
        stages=stages,
        context=request.context,
        target=request.target,
        headers=header_rules.visible(request.headers),
        nominated=header_rules.nominated_by(request.headers),
        body=body,
    )


def _go_on(step: Progress | Denied) -> Step:
    return step if isinstance(step, Denied) else _advance(step)


def _advance(progress: Progress) -> Step:
    """On to the next stage that can be asked, past those that cannot and may be bypassed."""
    while progress.stages:
        stage = progress.stages[0]
        evaluation = _evaluation(stage, progress)
        code = _obstacle(stage, evaluation, remaining=progress.remaining)
        if code is None:
            deadline = min(stage.timeout, progress.remaining)
            return Ask(stage=stage, evaluation=evaluation, deadline=deadline, state=progress)
        after = _failed(progress, code, latency=NO_TIME)
        if isinstance(after, Denied):
            return after
        progress = after
    return Allowed(
        body=progress.replacement,
        mutations=progress.mutations,
        metadata=progress.metadata,
        events=progress.events,
    )


def _evaluation(stage: Stage, progress: Progress) -> Evaluation:
    return Evaluation(
        binding=stage.binding,
        context=progress.context,
        config=stage.config,
        target=progress.target,
        headers=progress.headers,
        body=progress.body if progress.replacement is None else progress.replacement,
    )


def _obstacle(stage: Stage, evaluation: Evaluation, *, remaining: timedelta) -> FailureCode | None:
    if stage.unresolved is not None:
        return FailureCode.UNRESOLVED_STAGE
    breach = request_breach(stage, evaluation)
    if breach is not None:
        return breach
    return None if remaining > NO_TIME else FailureCode.CHAIN_TIMEOUT


def _blamed(code: FailureCode, ask: Ask) -> FailureCode:
    # A stage that was given less than its own timeout ran out of the chain's time, not of its own.
    is_cut_short = code is FailureCode.TIMEOUT and ask.deadline < ask.stage.timeout
    return FailureCode.CHAIN_TIMEOUT if is_cut_short else code


def _failed(progress: Progress, code: FailureCode, *, latency: timedelta) -> Progress | Denied:
    stage = progress.stages[0]
    ref = stage_ref(stage, progress.context, progress.target)
    match stage.on_error:
        case OnError.FAIL_OPEN:
            bypassed = Bypassed(stage=ref, code=code, latency=latency)
            return replace(progress, stages=progress.stages[1:], events=(*progress.events, bypassed))
        case OnError.FAIL_CLOSED:
            return Denied(
                cause=Cause.FAILED,
                key=stage.key,
                policy=stage.policy,
                code=code,
                metadata=progress.metadata,
                events=(*progress.events, Failed(stage=ref, code=code, latency=latency)),
            )
        case _:
            assert_never(stage.on_error)


def _denied(progress: Progress, result: Result, *, latency: timedelta) -> Denied:
    # "DENY is never turned into an allow": what is over a limit in it is left out, and the refusal stands.
    if any(observation_breaches(result)):
        result = replace(result, findings=(), metadata={})
    stage = progress.stages[0]
    return Denied(
        cause=Cause.DENIED,
        key=stage.key,
        policy=stage.policy,
        reason_code=result.reason_code if is_reason_code(result.reason_code) else "",
        metadata=_noted(progress, result),
        events=_observed(progress, replace(result, body=None, mutations=()), latency=latency),
    )


def _allowed(progress: Progress, result: Result, *, latency: timedelta) -> Progress | Denied:
    breach = next(answer_breaches(result, max_body_bytes=body_limit(progress.stages[0])), None)
    if breach is not None:
        return _failed(progress, breach, latency=latency)
    mutations = header_rules.validate(result.mutations, nominated=progress.nominated)
    if isinstance(mutations, FailureCode):
        return _failed(progress, mutations, latency=latency)
    return replace(
        progress,
        stages=progress.stages[1:],
        headers=header_rules.apply(mutations, progress.headers),
        replacement=progress.replacement if result.body is None else result.body,
        mutations=(*progress.mutations, *mutations),
        metadata=_noted(progress, result),
        events=_observed(progress, result, latency=latency),
    )


def _noted(progress: Progress, result: Result) -> Mapping[str, Mapping[str, str]]:
    # RFC 0009 "Metadata and downstream routing": under the map key. Two policies may use one key for the same
    # sandbox; then the later stage adds to what the earlier one noted.
    if not result.metadata:
        return progress.metadata
    key = progress.stages[0].key
    return {**progress.metadata, key: {**progress.metadata.get(key, {}), **result.metadata}}


def _observed(progress: Progress, result: Result, *, latency: timedelta) -> tuple[Event, ...]:
    stage = progress.stages[0]
    ref = stage_ref(stage, progress.context, progress.target)
    invoked = Invoked(
        stage=ref,
        decision=result.decision,
        is_transformed=result.body is not None or bool(result.mutations),
        latency=latency,
    )
    return (*progress.events, invoked, *found(stage, ref, result.findings))


def _unread_code(stage: Stage) -> FailureCode:
    is_resolved = stage.unresolved is None
    return FailureCode.REQUEST_BODY_OVER_CAPACITY if is_resolved else FailureCode.UNRESOLVED_STAGE

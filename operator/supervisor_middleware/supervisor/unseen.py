"""Requests that no stage can be shown: refused, or let past when every stage permits it. PURE.

RFC 0009 "Operation phases and placement" judges these over the whole chain, so that "one permissive stage" cannot
override a required one. Called by `chain`; a refusal names a stage only where that one stage is to blame.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from supervisor_middleware.audit.events import Bypassed, Failed, StageRef
from supervisor_middleware.model.evaluation import FailureCode, OnError, RequestContext, Target
from supervisor_middleware.model.generation import Stage
from supervisor_middleware.model.limits import MAX_STAGES
from supervisor_middleware.supervisor.exchange import Allowed, Cause, Denied, Outcome

NO_TIME: Final = timedelta(0)


def pass_unseen(
    stages: tuple[Stage, ...], context: RequestContext, target: Target, *, code_of: Callable[[Stage], FailureCode]
) -> Outcome:
    """Past all stages, each leaving a `Bypassed`; or refused for the first FailClosed one."""
    required = next((s for s in stages if s.on_error is OnError.FAIL_CLOSED), None)
    if required is not None:
        code = code_of(required)
        event = Failed(stage=stage_ref(required, context, target), code=code, latency=NO_TIME)
        return Denied(cause=Cause.FAILED, key=required.key, policy=required.policy, code=code, events=(event,))
    return Allowed(
        events=tuple(Bypassed(stage=stage_ref(s, context, target), code=code_of(s), latency=NO_TIME) for s in stages)
    )


def refuse_overflowed(stages: tuple[Stage, ...], context: RequestContext, target: Target) -> Denied:
    """Refused even when every stage is FailOpen: consumed bytes cannot be resumed, whoever would permit it."""
    code = FailureCode.REQUEST_BODY_OVER_CAPACITY
    events = tuple(Failed(stage=stage_ref(s, context, target), code=code, latency=NO_TIME) for s in stages[:1])
    return Denied(cause=Cause.FAILED, code=code, events=events)


def refuse_too_long(stages: tuple[Stage, ...], context: RequestContext, target: Target) -> Denied:
    """RFC 0009 "Policy integration": "runtime selection defensively rejects a chain longer than 10 stages"."""
    code = FailureCode.STAGES_OVER_CAPACITY
    surplus = [s for s in stages if s.unresolved is None][MAX_STAGES]
    event = Failed(stage=stage_ref(surplus, context, target), code=code, latency=NO_TIME)
    return Denied(cause=Cause.FAILED, code=code, events=(event,))


def stage_ref(stage: Stage, context: RequestContext, target: Target) -> StageRef:
    """The stage and the request as events name them: no path, no query, no header."""
    return StageRef(
        request_id=context.request_id,
        policy=stage.policy,
        key=stage.key,
        binding=stage.binding,
        host=target.host,
        port=target.port,
        method=target.method,
    )

"""Builders of what the data plane's tests work with: each names only what matters to the test."""

from datetime import timedelta
from typing import TypedDict, Unpack

from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.evaluation import (
    Decision,
    Finding,
    Header,
    HeaderMutation,
    OnError,
    RequestContext,
    Result,
    Target,
)
from supervisor_middleware.model.generation import Stage
from supervisor_middleware.model.hosts import HostSelector, parse_patterns
from supervisor_middleware.model.limits import MAX_BODY_BYTES
from supervisor_middleware.model.revision import Unresolved
from supervisor_middleware.supervisor.chain import Answer, Ask, Step, begin, resume
from supervisor_middleware.supervisor.exchange import Body, Outcome, Request, Whole

CONTEXT = RequestContext(request_id="request-1", sandbox_id="team/sandbox-1")


class StageFields(TypedDict, total=False):
    policy: str
    binding: str
    service: str | None
    config: JsonObject
    on_error: OnError
    max_body_bytes: int
    timeout: timedelta
    unresolved: Unresolved | None


def stage(key: str = "redact", **fields: Unpack[StageFields]) -> Stage:
    return Stage(
        key=key,
        label=key,
        policy=fields.get("policy", "team/policy"),
        binding=fields.get("binding", f"acme/{key}"),
        service=fields.get("service", "acme"),
        config=fields.get("config", {}),
        on_error=fields.get("on_error", OnError.FAIL_CLOSED),
        selector=HostSelector(include=parse_patterns(["**"])),
        max_body_bytes=fields.get("max_body_bytes", MAX_BODY_BYTES),
        timeout=fields.get("timeout", timedelta(milliseconds=500)),
        unresolved=fields.get("unresolved"),
    )


def fail_open(key: str = "trace", **fields: Unpack[StageFields]) -> Stage:
    fields["on_error"] = OnError.FAIL_OPEN
    return stage(key, **fields)


def target(*, path: str = "/v1/chat", query: str = "") -> Target:
    return Target(scheme="https", host="api.example.com", port=443, method="POST", path=path, query=query)


def request(
    body: bytes | Body = b"hello",
    *,
    headers: tuple[Header, ...] = (),
    context: RequestContext = CONTEXT,
    where: Target | None = None,
) -> Request:
    return Request(
        context=context,
        target=where or target(),
        headers=headers,
        body=Whole(body) if isinstance(body, bytes) else body,
    )


def allow(
    body: bytes | None = None,
    *,
    mutations: tuple[HeaderMutation, ...] = (),
    findings: tuple[Finding, ...] = (),
    metadata: dict[str, str] | None = None,
    reason: str = "",
) -> Result:
    return Result(
        decision=Decision.ALLOW,
        body=body,
        mutations=mutations,
        findings=findings,
        metadata=metadata or {},
        reason=reason,
    )


def deny(
    reason_code: str = "",
    *,
    body: bytes | None = None,
    mutations: tuple[HeaderMutation, ...] = (),
    findings: tuple[Finding, ...] = (),
    metadata: dict[str, str] | None = None,
) -> Result:
    return Result(
        decision=Decision.DENY,
        reason="said by the service",
        reason_code=reason_code,
        body=body,
        mutations=mutations,
        findings=findings,
        metadata=metadata or {},
    )


class Played:
    """A chain folded with one answer a stage (by key; a stage without one allows), recording what was asked."""

    def __init__(
        self,
        stages: tuple[Stage, ...],
        what: Request,
        answers: dict[str, Answer] | None = None,
        *,
        latency: timedelta = timedelta(milliseconds=1),
    ) -> None:
        self.asks: list[Ask] = []
        step: Step = begin(stages, what)
        while isinstance(step, Ask):
            self.asks.append(step)
            step = resume(step, (answers or {}).get(step.stage.key, allow()), latency=latency)
        self.outcome: Outcome = step

    @property
    def asked(self) -> list[str]:
        return [ask.stage.key for ask in self.asks]

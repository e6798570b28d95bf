"""Does a service keep the contract? A small suite for a service's own tests.

RFC 0009 "The middleware contract", and the SDK's promise that one `request_id` has one answer. It asks the service
for real, with made-up requests to `conformance.invalid`, and reports every problem found. An empty report means that
nothing was found, not that the service is right: what it looks for in bodies is its own business.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, TypeAlias

import grpc.aio

from supervisor_middleware.compiler.binding import is_usable
from supervisor_middleware.middleware.answers import manifest_problems, result_problems
from supervisor_middleware.middleware.service import Middleware
from supervisor_middleware.middleware.subjects import CallFailed, InProcess, Remote, Subject
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.evaluation import Decision, Evaluation, Header, Process, RequestContext, Target
from supervisor_middleware.model.limits import MAX_BODY_BYTES, MAX_GRPC_MESSAGE_BYTES, MAX_HEADER_LINES
from supervisor_middleware.model.manifest import Binding
from supervisor_middleware.model.verdict import Rejected
from supervisor_middleware.model.violation import Reason
from supervisor_middleware.wire.channels import OPTIONS

DEADLINE: Final = timedelta(seconds=10)

CHANNEL_OPTIONS: Final = OPTIONS
"""How operator and supervisors dial: among it, what a channel needs so that the largest valid message passes."""

_CANARY: Final = "conformance-canary-4f1d"
# How transports answer a message they do not take; a service that received it has other words.
_NOT_RECEIVED: Final = frozenset({"RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One way in which the service breaks the contract; nothing of the service's own text but a binding's ID."""

    check: str
    binding: str = ""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One binding of the subject, and a config that it takes."""

    subject: Subject
    binding: Binding
    config: JsonObject = field(repr=False)

    def problem(self, check: Callable[..., object], message: str) -> Problem:
        """A problem of this binding, found by `check`."""
        return Problem(check=check.__name__, binding=self.binding.id, message=message)

    def request(self, body: bytes) -> Evaluation:
        """A harmless request with as much of `body` as the binding takes."""
        return Evaluation(
            binding=self.binding.id,
            context=RequestContext(request_id="conformance-0001", sandbox_id="conformance"),
            config=self.config,
            target=Target(scheme="https", host="conformance.invalid", port=443, method="POST", path="/v1/check"),
            headers=(Header("content-type", "text/plain"), Header("accept", "a"), Header("accept", "b")),
            body=body[: self.binding.max_body_bytes],
        )


Check: TypeAlias = Callable[[Trial], AsyncIterator[Problem]]


async def check(
    channel: grpc.aio.Channel, *, config: JsonObject | None = None, deadline: timedelta = DEADLINE
) -> list[Problem]:
    """Examine the service behind `channel`.

    Args:
        channel: to the service, made with `CHANNEL_OPTIONS` and the caller's TLS; it stays open.
        config: one that the service takes; needed where it does not take an empty one.
        deadline: of each call.
    """
    return await examine(Remote(channel, deadline=deadline), config=config or {})


async def check_in_process(
    middleware: Middleware, *, config: JsonObject | None = None, deadline: timedelta = DEADLINE
) -> list[Problem]:
    """Examine `middleware` without a network: the same suite, for built-ins and for an author's fast tests."""
    tolerated = frozenset({Reason.RESERVED_NAMESPACE})
    return await examine(InProcess(middleware, deadline=deadline), config=config or {}, tolerated=tolerated)


async def examine(
    subject: Subject, *, config: JsonObject, tolerated: frozenset[Reason] = frozenset()
) -> list[Problem]:
    """Run `Describe`, then every check against every HTTP binding of `subject`."""
    name = "describe_is_well_formed"
    try:
        manifest = await subject.describe()
    except CallFailed as failed:
        return [Problem(check=name, message=f"Describe gave no manifest: {failed.code}")]
    if problems := [Problem(check=name, message=text) for text in manifest_problems(manifest, tolerated=tolerated)]:
        return problems
    trials = [
        Trial(subject=subject, binding=binding, config=config) for binding in manifest.bindings if is_usable(binding)
    ]
    return [problem for trial in trials for run in CHECKS async for problem in run(trial)]


async def config_is_judged(trial: Trial) -> AsyncIterator[Problem]:
    """ValidateConfig answers the same twice, with a reason where it refuses, and takes the suite's config."""
    for config in (trial.config, {}, {"conformance-unknown-key": True}):
        try:
            first, second = [await trial.subject.validate_config(trial.binding.id, config) for _ in range(2)]
        except CallFailed as failed:
            yield trial.problem(config_is_judged, f"ValidateConfig gave no answer: {failed.code}")
            return
        if first != second:
            yield trial.problem(config_is_judged, "ValidateConfig answered differently the second time")
        if isinstance(first, Rejected) and not first.reason:
            yield trial.problem(config_is_judged, "ValidateConfig refused without a reason")
        if isinstance(first, Rejected) and config is trial.config:
            yield trial.problem(config_is_judged, "ValidateConfig refuses the suite's config: give it one it takes")


async def answers_are_repeatable(trial: Trial) -> AsyncIterator[Problem]:
    """The same request gives the same, valid answer with a decision: a caller may have to ask again."""
    request = trial.request(b"plain text, nothing to find")
    try:
        first, second = [await trial.subject.evaluate(request) for _ in range(2)]
    except CallFailed as failed:
        yield trial.problem(answers_are_repeatable, f"EvaluateHttpRequest gave no answer: {failed.code}")
        return
    if first != second:
        yield trial.problem(answers_are_repeatable, "the same request_id was answered differently")
    for code in result_problems(first, max_body_bytes=trial.binding.max_body_bytes):
        yield trial.problem(answers_are_repeatable, f"the answer breaks the contract: {code}")


async def process_data_is_optional(trial: Trial) -> AsyncIterator[Problem]:
    """RFC 0009 "Actor data": absent process data is unavailable, never an authorization failure."""
    absent = trial.request(b"plain text, nothing to find")
    process = Process(binary="/usr/bin/agent", pid=4711, ancestors=("/usr/bin/sh",))
    known = replace(absent, context=replace(absent.context, process=process))
    try:
        without, with_it = [(await trial.subject.evaluate(request)).decision for request in (absent, known)]
    except CallFailed as failed:
        yield trial.problem(process_data_is_optional, f"EvaluateHttpRequest gave no answer: {failed.code}")
        return
    if (without, with_it) == (Decision.DENY, Decision.ALLOW):
        yield trial.problem(process_data_is_optional, "a request is denied only because its process is unknown")


async def findings_hold_no_content(trial: Trial) -> AsyncIterator[Problem]:
    """RFC 0009 "Finding shape": no matched value and no raw content in a reason, a finding or metadata."""
    try:
        result = await trial.subject.evaluate(trial.request(f"{_CANARY} sk-{_CANARY}".encode()))
    except CallFailed as failed:
        yield trial.problem(findings_hold_no_content, f"EvaluateHttpRequest gave no answer: {failed.code}")
        return
    texts = [result.reason, result.reason_code, *result.metadata, *result.metadata.values()]
    texts += [text for f in result.findings for text in (f.type, f.label, f.confidence, f.severity)]
    if any(_CANARY in text for text in texts):
        yield trial.problem(findings_hold_no_content, "a reason, finding or metadata entry repeats the body")


async def largest_messages_pass(trial: Trial) -> AsyncIterator[Problem]:
    """RFC 0009: a server takes 4 MiB of body with 293 KiB around it, and evaluates bodies up to its own limit."""
    limit = trial.binding.max_body_bytes
    headers = tuple(Header(f"x-conformance-{i}", "v" * 400) for i in range(MAX_HEADER_LINES))
    for size in sorted({limit, MAX_BODY_BYTES}):
        request = replace(trial.request(b""), headers=headers, body=b"a" * size)
        message_bytes = MAX_GRPC_MESSAGE_BYTES if size == MAX_BODY_BYTES else 0
        try:
            await trial.subject.evaluate(request, message_bytes=message_bytes)
        except CallFailed as failed:
            # A body over its own limit a service may refuse, but only after it has received the message.
            if size <= limit or failed.code in _NOT_RECEIVED:
                message = f"a request with {size} bytes of body gave no answer: {failed.code}"
                yield trial.problem(largest_messages_pass, message)


CHECKS: Final[tuple[Check, ...]] = (
    config_is_judged,
    answers_are_repeatable,
    process_data_is_optional,
    findings_hold_no_content,
    largest_messages_pass,
)
"""What is examined for each binding, after `Describe`."""

"""Who answers for a stage in a simulation: the answers of a case, the built-ins of this process, or the services.

A stage with nobody to answer for it is unavailable: what its `onError` says is then what is seen.
"""

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from supervisor_middleware.cli.simulate.cases import FAULTS, AnswerSpec, HeaderSpec
from supervisor_middleware.cli.simulate.trace import Clock, Source
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.middleware.builtins import BUILTINS
from supervisor_middleware.model.durations import read_duration
from supervisor_middleware.model.evaluation import (
    Decision,
    Evaluation,
    ExistingHeader,
    FailureCode,
    Finding,
    HeaderMutation,
    RemoveHeader,
    Result,
    StageFailed,
    WriteHeader,
)
from supervisor_middleware.model.generation import Generation, Service, Stage
from supervisor_middleware.supervisor.runner import StageCaller
from supervisor_middleware.supervisor.stages import BuiltinCaller, ServiceCaller
from supervisor_middleware.wire.channels import ClientIdentity, open_channel
from supervisor_middleware.wire.codec import ConfigUnencodable

if TYPE_CHECKING:
    from grpc import aio


class Services:
    """The real services, over one channel each. Close it when all is asked."""

    def __init__(self, identity: ClientIdentity | None) -> None:
        self._identity = identity
        self._channels: dict[Service, aio.Channel] = {}

    def caller(self, stage: Stage, service: Service) -> StageCaller | None:
        """Who asks the service for `stage`; None where it cannot be asked."""
        try:
            channel = self._channels.get(service) or open_channel(service.connection, identity=self._identity)
            self._channels[service] = channel
            return ServiceCaller(channel, dialect=service.dialect, config=stage.config)
        except (InvalidInput, ConfigUnencodable):
            return None

    async def close(self) -> None:
        """Close every channel."""
        for channel in self._channels.values():
            await channel.close(None)


class Answers:
    """Chooses who answers: what the case says for the stage or its binding, then built-ins, then the services."""

    def __init__(
        self, answers: Mapping[str, AnswerSpec], generation: Generation, *, services: Services | None, clock: Clock
    ) -> None:
        self._answers = answers
        self._generation = generation
        self._services = services
        self._clock = clock

    def __call__(self, stage: Stage) -> tuple[StageCaller, Source]:
        """Who answers for `stage`."""
        answer = self._answers.get(stage.key, self._answers.get(stage.binding))
        if answer is not None:
            return _Given(answer, self._clock), Source.GIVEN
        if stage.service is None:
            builtin = BUILTINS.get(stage.binding)
            return (_Nobody(), Source.MISSING) if builtin is None else (BuiltinCaller(builtin), Source.BUILTIN)
        service = self._generation.service(stage.service)
        if self._services is None or service is None:
            return _Nobody(), Source.MISSING
        caller = self._services.caller(stage, service)
        return _Nobody() if caller is None else _Timed(caller, self._clock), Source.SERVICE


class _Given:
    """Answers as a case says, after as long as it says."""

    def __init__(self, answer: AnswerSpec, clock: Clock) -> None:
        self._answer = answer
        self._clock = clock

    async def evaluate(self, stage: Stage, evaluation: Evaluation, *, deadline: timedelta) -> Result:
        del stage, evaluation
        code = FAULTS.get(self._answer.fails or "")
        after = read_duration(self._answer.after) or timedelta(0)
        if code is FailureCode.TIMEOUT or after > deadline:
            self._clock.advance(deadline)
            raise StageFailed(FailureCode.TIMEOUT)
        self._clock.advance(after)
        if code is not None:
            raise StageFailed(code)
        return result_of(self._answer)


class _Nobody:
    async def evaluate(self, stage: Stage, evaluation: Evaluation, *, deadline: timedelta) -> Result:
        del stage, evaluation, deadline
        raise StageFailed(FailureCode.SERVICE_ERROR)


class _Timed:
    """A real call takes real time."""

    def __init__(self, caller: StageCaller, clock: Clock) -> None:
        self._caller = caller
        self._clock = clock

    async def evaluate(self, stage: Stage, evaluation: Evaluation, *, deadline: timedelta) -> Result:
        began = time.monotonic()
        try:
            return await self._caller.evaluate(stage, evaluation, deadline=deadline)
        finally:
            self._clock.advance(timedelta(seconds=time.monotonic() - began))


def result_of(answer: AnswerSpec) -> Result:
    """The answer as a service's result; whether it is within the limits, the chain judges."""
    return Result(
        decision=Decision.DENY if answer.decision == "deny" else Decision.ALLOW,
        reason_code=answer.reason_code,
        body=None if answer.body is None else answer.body.encode(),
        mutations=tuple(_mutation(h) for h in answer.headers),
        findings=tuple(Finding(**f.model_dump()) for f in answer.findings),
        metadata=dict(answer.metadata),
    )


def _mutation(spec: HeaderSpec) -> HeaderMutation:
    if spec.remove is not None:
        return RemoveHeader(name=spec.remove)
    return WriteHeader(name=spec.write or "", value=spec.value, on_existing=ExistingHeader(spec.on_existing))

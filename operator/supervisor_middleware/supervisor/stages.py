"""The two ways to ask a stage: a service over gRPC, or a built-in in this process. I/O.

RFC 0009 "The middleware contract": a built-in "uses the same logical contract in-process with no network hop".
Owns how a call is made once, within its deadline, and which of the platform's words stands for each way it fails.
Judges no result (the chain does), builds no channel and holds no credential: who runs a generation hands channels
in, and closes them. A service's own text never leaves here, not even in an exception's chain.
"""

import asyncio
import inspect
from collections.abc import Awaitable
from datetime import timedelta
from typing import Final, Protocol

import grpc
import grpc.aio

from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.evaluation import Evaluation, FailureCode, Result, StageFailed
from supervisor_middleware.model.generation import Stage
from supervisor_middleware.model.limits import KIB
from supervisor_middleware.model.manifest import Dialect
from supervisor_middleware.wire.codec import METHODS, config_struct, decode_result, encode_evaluation

INLINE_BODY_BYTES: Final = 64 * KIB
"""Up to here a built-in runs on the event loop itself: about what a thread would cost."""

# How gRPC's own client says that it would not take a message. A peer that forges it changes the code, nothing else.
_TOO_LARGE_TO_RECEIVE: Final = "CLIENT: Received message larger than max"


class ServiceCaller:
    """Asks one stage of a registered service, in the service's dialect.

    One for each stage: the config is encoded here, once. It may share its channel with other stages. Each matching
    stage runs at most once a request, so the channel's builder turns gRPC's retries off (`grpc.enable_retries` 0)
    and sets both message limits to `MAX_GRPC_MESSAGE_BYTES`.
    """

    def __init__(self, channel: grpc.aio.Channel, *, dialect: Dialect, config: JsonObject) -> None:
        """`config` is the stage's.

        Raises:
            ConfigUnencodable: no Struct holds it; never for the config of an accepted revision.
        """
        self._dialect = dialect
        self._config = config_struct(config)
        # No serializers: the codec's bytes go out and the service's come in as they are.
        self._call = channel.unary_unary(METHODS.evaluate_http_request, None, None)

    async def evaluate(self, stage: Stage, evaluation: Evaluation, *, deadline: timedelta) -> Result:
        """One attempt. The deadline covers connecting; a service known to be down fails at once.

        Raises:
            StageFailed: no answer in time, no answer at all, or one that breaks the contract.
        """
        del stage
        request = encode_evaluation(self._dialect, evaluation, config_struct=self._config)
        try:
            answer: bytes = await self._call(request, timeout=deadline.total_seconds(), wait_for_ready=False)
        except grpc.aio.AioRpcError as error:
            raise StageFailed(_code(error)) from None
        return decode_result(self._dialect, answer)


class Builtin(Protocol):
    """What a built-in offers: an ordinary or an `async` method, as suits its author."""

    def evaluate(self, evaluation: Evaluation) -> Result | Awaitable[Result]:
        """The result, by the contract every service obeys.

        May run in a thread beside other calls, there on an event loop of its own: it keeps no state between calls
        without a lock, and nothing that is bound to a loop.

        Raises:
            StageFailed: there is none, and why.
        """


class BuiltinCaller:
    """Asks a built-in, off the event loop where its work could hold the loop up.

    What a built-in does is computing, `async` or not, so a large body goes to a thread: else one request's regular
    expressions would stop all others. The interpreter still runs one thread at a time; the gain is that the others
    get their turns. A thread cannot be stopped: after the deadline the request goes on by `on_error`, and the thread
    finishes unheard.
    """

    def __init__(self, builtin: Builtin) -> None:
        """`builtin` is called once a request."""
        self._builtin = builtin

    async def evaluate(self, stage: Stage, evaluation: Evaluation, *, deadline: timedelta) -> Result:
        """One call.

        Raises:
            StageFailed: the built-in said so, or took too long.
        """
        del stage
        try:
            async with asyncio.timeout(deadline.total_seconds()):
                if len(evaluation.body) <= INLINE_BODY_BYTES:
                    return await _evaluated(self._builtin, evaluation)
                return await asyncio.to_thread(_evaluated_apart, self._builtin, evaluation)
        except TimeoutError:
            raise StageFailed(FailureCode.TIMEOUT) from None


async def _evaluated(builtin: Builtin, evaluation: Evaluation) -> Result:
    answer = builtin.evaluate(evaluation)
    return await answer if inspect.isawaitable(answer) else answer


def _evaluated_apart(builtin: Builtin, evaluation: Evaluation) -> Result:
    return asyncio.run(_evaluated(builtin, evaluation))


def _code(error: grpc.aio.AioRpcError) -> FailureCode:
    match error.code():
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return FailureCode.TIMEOUT
        case grpc.StatusCode.RESOURCE_EXHAUSTED if _TOO_LARGE_TO_RECEIVE in (error.details() or ""):
            return FailureCode.RESPONSE_OVER_CAPACITY
        case _:
            return FailureCode.SERVICE_ERROR

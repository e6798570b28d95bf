"""What the conformance suite examines: a middleware in this process, or a service behind a channel.

Both answer with model values or `CallFailed`, so that one suite holds for built-ins and for remote services
(RFC 0009: built-ins use the same logical contract in-process).
"""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Final, Protocol, TypeVar

import grpc
import grpc.aio

from supervisor_middleware.middleware.service import Middleware
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.evaluation import Evaluation, FailureCode, Result, StageFailed
from supervisor_middleware.model.manifest import Dialect, Manifest
from supervisor_middleware.model.verdict import Accepted, Rejected
from supervisor_middleware.wire import codec
from supervisor_middleware.wire.framing import length_delimited
from supervisor_middleware.wire.undecodable import Undecodable

# The released dialect names no binding; a registration's name stands for it.
REGISTRATION_NAME: Final = "conformance"

# Protobuf ignores fields it does not know: padding that no limit but the transport's sees.
_PADDING_FIELD: Final = 2047
_PADDING_OVERHEAD: Final = 6

_T = TypeVar("_T")


class CallFailed(Exception):  # noqa: N818 - an observation of the suite
    """A call gave no answer; `code` is a gRPC status name or a failure code of the contract."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Subject(Protocol):
    """What is examined. Each method raises `CallFailed` where there is no answer."""

    async def describe(self) -> Manifest:
        """The manifest."""

    async def validate_config(self, binding: str, config: JsonObject) -> Accepted | Rejected:
        """The verdict on a config."""

    async def evaluate(self, evaluation: Evaluation, *, message_bytes: int = 0) -> Result:
        """The answer to a request, sent in a message of at least `message_bytes` where there are messages."""


class InProcess:
    """A middleware called directly, with the deadline that a caller would set."""

    def __init__(self, middleware: Middleware, *, deadline: timedelta) -> None:
        self._middleware = middleware
        self._deadline = deadline

    async def describe(self) -> Manifest:
        """The manifest as the author wrote it."""
        return self._middleware.manifest

    async def validate_config(self, binding: str, config: JsonObject) -> Accepted | Rejected:
        """The author's verdict."""
        reason = await self._observed(self._middleware.validate_config(binding, config))
        return Accepted() if reason is None else Rejected(reason)

    async def evaluate(self, evaluation: Evaluation, *, message_bytes: int = 0) -> Result:
        """The author's answer; there are no messages here."""
        del message_bytes
        return await self._observed(self._middleware.evaluate(evaluation))

    async def _observed(self, answer: Awaitable[_T]) -> _T:
        try:
            return await asyncio.wait_for(answer, self._deadline.total_seconds())
        except StageFailed as failed:
            raise CallFailed(failed.code) from failed
        except TimeoutError as error:
            raise CallFailed(FailureCode.TIMEOUT) from error
        except Exception as error:
            raise CallFailed("INTERNAL") from error


class Remote:
    """A service behind a channel, in whichever dialect its manifest speaks. `describe` comes first."""

    def __init__(self, channel: grpc.aio.Channel, *, deadline: timedelta) -> None:
        self._channel = channel
        self._deadline = deadline
        self._dialect = Dialect.RFC0009

    async def describe(self) -> Manifest:
        """The manifest; later calls follow its dialect."""
        answer = await self._call(codec.METHODS.describe, codec.DESCRIBE_REQUEST)
        try:
            manifest = codec.decode_manifest(answer, registration_name=REGISTRATION_NAME)
        except Undecodable as error:
            raise CallFailed(error.problem) from error
        self._dialect = manifest.dialect
        return manifest

    async def validate_config(self, binding: str, config: JsonObject) -> Accepted | Rejected:
        """The service's verdict."""
        request = codec.encode_validate_config(self._dialect, binding=binding, config=config)
        try:
            return codec.decode_verdict(self._dialect, await self._call(codec.METHODS.validate_config, request))
        except Undecodable as error:
            raise CallFailed(error.problem) from error

    async def evaluate(self, evaluation: Evaluation, *, message_bytes: int = 0) -> Result:
        """The service's answer."""
        request = codec.encode_evaluation(self._dialect, evaluation)
        padding = bytes(max(0, message_bytes - len(request) - _PADDING_OVERHEAD))
        if padding:
            request = b"".join((request, *length_delimited(_PADDING_FIELD, padding)))
        try:
            return codec.decode_result(self._dialect, await self._call(codec.METHODS.evaluate_http_request, request))
        except StageFailed as failed:
            raise CallFailed(failed.code) from failed

    async def _call(self, method: str, request: bytes) -> bytes:
        call = self._channel.unary_unary(
            method, request_serializer=None, response_deserializer=None
        )  # raw bytes both ways
        try:
            answer: bytes = await call(request, timeout=self._deadline.total_seconds())
        except grpc.aio.AioRpcError as error:
            # The code alone: the details are the service's own text.
            raise CallFailed(error.code().name) from error
        return answer

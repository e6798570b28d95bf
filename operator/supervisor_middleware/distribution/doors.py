"""What every call on a port passes, whatever its method.

It is known which connections carry a call, and no call is begun and never made: gRPC would wait for the message of a
unary call without an end, and before anybody of ours knows of it. An interceptor, so that no method is forgotten.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from supervisor_middleware.distribution.connections import Address, address_of
from supervisor_middleware.distribution.endings import abort
from supervisor_middleware.distribution.streams import End

MESSAGE_WAIT: Final = 10.0
"""Seconds; a message usually comes with the beginning of its call."""
WAITED_FOR_OF_ONE_CERTIFICATE: Final = 16
WAITED_FOR_OF_ONE_HOST: Final = 512
"""Where nobody has a certificate; many may be behind one address, and come at once."""

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_NO_MESSAGE: Final = End(grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")
_SILENT: Final = End(grpc.StatusCode.DEADLINE_EXCEEDED, "no message came in time")
_TOO_MANY: Final = End(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls without a message; try again in 5 s", 5.0)


class Door(grpc.aio.ServerInterceptor):  # type: ignore[type-arg] # a generic in the stubs alone
    """One port."""

    def __init__(self, *, message_wait: float = MESSAGE_WAIT) -> None:
        """`port` is to be set when it is known."""
        self.port = 0
        self.arrivals = 0
        """Handshakes that began."""
        self.calls: Counter[Address] = Counter()
        """That are worked on, by connection."""
        self._message_wait = message_wait
        self._waited_for: Counter[Hashable] = Counter()
        self._handlers: dict[str, _Handler] = {}

    def arrived(self) -> None:
        """A handshake begins. Called from gRPC's threads, one at a time."""
        self.arrivals += 1

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """The handler of a method, with what is said above around it."""
        handler: Any = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        # Of a method that there is not there is no handler.
        if handler is not None and method not in self._handlers:
            self._handlers[method] = self._watched(handler)
        watched: Any = self._handlers.get(method)
        return watched  # type: ignore[no-any-return] # the stubs do not know that there may be none

    def _watched(self, handler: Any) -> _Handler:
        takes = "stream" if handler.request_streaming else "unary"
        gives = "stream" if handler.response_streaming else "unary"
        behavior = getattr(handler, f"{takes}_{gives}")
        given = self._as_given if handler.request_streaming else self._message

        async def answer(requests: Any, context: _Context) -> Any:
            request = await given(requests, context)
            with self._call(context):
                return await behavior(request, context)

        async def stream(requests: Any, context: _Context) -> AsyncIterator[Any]:
            request = await given(requests, context)
            with self._call(context):
                async with aclosing(behavior(request, context)) as responses:
                    async for response in responses:
                        yield response

        make: Any = getattr(grpc, f"stream_{gives}_rpc_method_handler")
        watched: _Handler = make(
            stream if inspect.isasyncgenfunction(behavior) else answer,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
        return watched

    async def _as_given(self, requests: Any, _: _Context) -> Any:
        return requests

    async def _message(self, requests: Any, context: _Context) -> Any:
        caller, most = _caller(context)
        if self._waited_for[caller] >= most:
            await abort(context, _TOO_MANY)
        self._waited_for[caller] += 1
        try:
            async with asyncio.timeout(self._message_wait):
                return await anext(aiter(requests))
        except TimeoutError:
            await abort(context, _SILENT)
        except StopAsyncIteration:
            await abort(context, _NO_MESSAGE)
        finally:
            self._waited_for[caller] -= 1
            if not self._waited_for[caller]:
                del self._waited_for[caller]

    @contextmanager
    def _call(self, context: _Context) -> Iterator[None]:
        address = address_of(context.peer())
        if address is None:
            yield
            return
        self.calls[address] += 1
        try:
            yield
        finally:
            self.calls[address] -= 1
            if not self.calls[address]:
                del self.calls[address]


def _caller(context: _Context) -> tuple[Hashable, int]:
    """Whoever a certificate names; without one, a host. And of how many calls of it a message is waited for."""
    known = context.auth_context()
    name = tuple(known.get("x509_subject_alternative_name", ())), tuple(known.get("x509_subject", ()))
    if any(name):
        return name, WAITED_FOR_OF_ONE_CERTIFICATE
    address = address_of(context.peer())
    return address and address[0], WAITED_FOR_OF_ONE_HOST

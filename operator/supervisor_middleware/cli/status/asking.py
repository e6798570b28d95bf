"""The operator's answers to who runs what: all of them, or each change."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
import grpc.aio

from supervisor_middleware.cli.status.reach import Reached, Unreached
from supervisor_middleware.cli.status.supervisors import joined
from supervisor_middleware.errors import SupervisorMiddlewareError, Unavailable
from supervisor_middleware.supervisor.operator_channel import open_operator_channel, translated
from supervisor_middleware.wire.gen import inspection_pb2 as pb
from supervisor_middleware.wire.gen import inspection_pb2_grpc as rpc

_SECONDS: Final = 15.0
_MAX_ROWS: Final = 2000


class GaveWay(Unavailable):
    """A newer watch has the place: to begin again would take another's."""


class Inspector:
    """One connection to the operator."""

    def __init__(self, reached: Reached, channel: grpc.aio.Channel) -> None:
        """Made by `inspecting`."""
        self._reached = reached
        self._stub: Any = rpc.InspectionStub(channel)
        self._metadata = (("authorization", f"Bearer {reached.token}"),)

    async def everything(self, wanted: pb.Filter) -> pb.SupervisorList:
        """All pages.

        Raises:
            Untrusted: the token proves nothing, or its bearer may not.
            Unavailable: the operator is.
        """
        pages: list[pb.SupervisorList] = []
        request = pb.ListSupervisorsRequest(filter=wanted, limit=_MAX_ROWS)
        try:
            while not pages or request.page_token:
                page = await self._stub.ListSupervisors(request, metadata=self._metadata, timeout=_SECONDS)
                pages.append(page)
                request.page_token = page.next_page_token
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from error
        return joined(pages)

    async def changes(self, wanted: pb.Filter) -> AsyncGenerator[pb.SupervisorList]:
        """The newest answers, whole, as long as the operator tells.

        Raises:
            Untrusted: the token proves nothing, or not any more, or its bearer may not.
            GaveWay: the operator gave this watch's place to a newer one.
            Unavailable: the operator is, or has ended the watch.
        """
        request = pb.WatchSupervisorsRequest(filter=wanted, limit=_MAX_ROWS)
        call = self._stub.WatchSupervisors(request, metadata=self._metadata)
        try:
            async for answer in call:
                yield answer
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from error
        finally:
            call.cancel()
        raise Unavailable(f"operator {self._reached.address}: ended the watch")

    def _translated(self, error: grpc.aio.AioRpcError) -> SupervisorMiddlewareError:
        if problem := self._reached.problem():
            return Unreached(problem)
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return Unreached(f"operator {self._reached.address}: is older than this command and cannot tell")
        translation = translated(error, address=self._reached.address)
        return GaveWay(str(translation)) if error.code() is grpc.StatusCode.ABORTED else translation


@asynccontextmanager
async def inspecting(reached: Reached) -> AsyncIterator[Inspector]:
    """Ask whoever was reached."""
    channel = open_operator_channel(
        reached.address, trust_domain=reached.trust_domain, roots_pem=reached.roots_pem, credentials=None
    )
    try:
        yield Inspector(reached, channel)
    finally:
        await channel.close(None)

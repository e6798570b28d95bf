"""How a call ends before its time: a status, a sentence, and how long to stay away."""

import math
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from supervisor_middleware.distribution.streams import End
from supervisor_middleware.distribution.turns import TooMany
from supervisor_middleware.errors import Bug

PUSHBACK: Final = "grpc-retry-pushback-ms"
"""How long to stay away: the name that gRPC's own retries have for it (gRFC A6)."""


async def abort(context: "grpc.aio.ServicerContext[Any, Any]", end: End) -> NoReturn:
    """End a call with `end`."""
    metadata = () if end.pause is None else ((PUSHBACK, str(int(end.pause * 1000))),)
    await context.abort(end.code, end.details, trailing_metadata=metadata)
    raise Bug("abort returned")


def refusal(error: TooMany) -> End:
    """What is told to whoever finds no place."""
    details = f"{error}; try again in {math.ceil(error.pause)} s"
    return End(grpc.StatusCode.RESOURCE_EXHAUSTED, details, pause=error.pause)

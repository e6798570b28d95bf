"""Waiting for what has no event of its own: another process, the other end of a socket, another object's business."""

import asyncio
from collections.abc import Callable
from typing import Final

PATIENCE: Final = 5.0


async def eventually(holds: Callable[[], object], *, seconds: float = PATIENCE) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - see the module's docstring
            await asyncio.sleep(0.005)

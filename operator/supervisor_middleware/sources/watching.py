"""Tells when something under a path may have changed. A file edge, and a hint only: whoever hears it reads it all.

The system's notices come within milliseconds; every two seconds the files' stamps are compared as well, for what
sends no notices (network file systems, folders behind links, a folder that was deleted and made anew).
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Final

import structlog
import watchfiles

from supervisor_middleware.sources.files import STDIN, SUFFIXES, signature

_DEBOUNCE: Final = 50
_STEP: Final = 10
_LOOK_EVERY: Final = 2_000

_log = structlog.get_logger(__name__)


async def changes(
    paths: Sequence[Path], stop: asyncio.Event, *, except_under: Path | None = None
) -> AsyncIterator[None]:
    """Once for each burst of changes, until `stop` is set."""
    watched = [p for p in paths if str(p) != STDIN]
    seen = await asyncio.to_thread(signature, watched, except_under=except_under)
    while not stop.is_set():
        roots = _roots(watched)
        async with contextlib.aclosing(_notices(roots, stop)) as notices:
            async for touched in notices:
                before, seen = seen, await asyncio.to_thread(signature, watched, except_under=except_under)
                if seen != before or _concerns_us(touched, except_under):
                    yield
                if _roots(watched) != roots:
                    # One of the paths is another folder now; notices of the old one tell nothing.
                    break


async def _notices(roots: dict[Path, tuple[int, int]], stop: asyncio.Event) -> AsyncGenerator[tuple[Path, ...], None]:
    """The paths touched, by burst; none every two seconds without any. Ends when the system cannot tell."""
    if roots:
        try:
            async for batch in watchfiles.awatch(
                *roots,
                watch_filter=None,
                debounce=_DEBOUNCE,
                step=_STEP,
                stop_event=stop,
                rust_timeout=_LOOK_EVERY,
                yield_on_timeout=True,
                ignore_permission_denied=True,
            ):
                yield tuple(Path(path) for _, path in batch)
        except (OSError, RuntimeError) as error:
            # Too many watches, or a folder that went away at this moment: the stamps are still compared.
            _log.warning("the folder cannot be watched for the moment", reason=type(error).__name__)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LOOK_EVERY / 1000):
            await stop.wait()
    yield ()


def _concerns_us(touched: Iterable[Path], except_under: Path | None) -> bool:
    ours = None if except_under is None else except_under.absolute()
    return any(p.suffix in SUFFIXES and (ours is None or not p.is_relative_to(ours)) for p in touched)


def _roots(paths: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """The paths that are there, with what tells one folder from its successor."""
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            status = path.stat()
            found[path] = (status.st_dev, status.st_ino)
    return found

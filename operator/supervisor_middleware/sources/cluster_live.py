"""What a review is in doubt about, read from the API server now: bounded, and never kept.

One list of registrations at a time: whoever asks while one is under way gets the next, which began after they asked.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Protocol

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.snapshot import Kind, Snapshot, Stored
from supervisor_middleware.model.violation import Subject
from supervisor_middleware.sources.cluster_api import ClusterApi, Form, NotFound
from supervisor_middleware.sources.cluster_kinds import WATCHED
from supervisor_middleware.sources.cluster_objects import identity_of, stored_from

_AT_ONCE: Final = 8


class Doubtful(Protocol):
    """`control.doubts.Doubts`."""

    @property
    def registrations(self) -> bool:
        """Whether all of them are to be read."""

    @property
    def policies(self) -> tuple[Subject, ...]:
        """Which are to be looked for."""


class ClusterLive:
    """Reads; writes nothing and remembers nothing."""

    def __init__(self, api: ClusterApi) -> None:
        self._api = api
        self._running: asyncio.Task[tuple[Stored, ...]] | None = None
        self._following: asyncio.Task[tuple[Stored, ...]] | None = None

    async def updated(self, snapshot: Snapshot, doubts: Doubtful) -> Snapshot:
        """`snapshot` with what `doubts` names as it is now; the same object if nothing differs.

        Raises:
            Unavailable: the API server is.
        """
        if doubts.registrations:
            listed = await self._registrations()
            if _states(listed) != _states(snapshot.registrations):
                snapshot = replace(snapshot, registrations=listed)
        gone = await self._gone({p.subject: p.uid for p in snapshot.policies if p.subject in set(doubts.policies)})
        if gone:
            snapshot = replace(snapshot, policies=tuple(p for p in snapshot.policies if p.uid not in gone))
        return snapshot

    async def _gone(self, known: dict[Subject, str]) -> frozenset[str]:
        """UIDs of policies that are deleted by now, or replaced by another of the same name."""
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def is_gone(subject: Subject, uid: str) -> bool:
            async with at_once:
                path = WATCHED[Kind(subject.kind)].path(subject.name, namespace=subject.namespace)
                try:
                    return identity_of(await self._api.get(path, form=Form.METADATA)).uid != uid
                except NotFound:
                    return True
                except InvalidInput:
                    return False

        found = await asyncio.gather(*(is_gone(subject, uid) for subject, uid in known.items()))
        return frozenset(uid for uid, gone in zip(known.values(), found, strict=True) if gone)

    async def _registrations(self) -> tuple[Stored, ...]:
        if self._following is None:
            self._following = asyncio.create_task(self._list_after(self._running))
            # Everybody may have given up by the time it fails.
            self._following.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Others wait for it, too: one who gives up does not end it.
        return await asyncio.shield(self._following)

    async def _list_after(self, running: asyncio.Task[tuple[Stored, ...]] | None) -> tuple[Stored, ...]:
        if running is not None:
            await asyncio.wait({running})
        self._running, self._following = self._following, None
        found: list[Stored] = []
        async for page in self._api.pages(WATCHED[Kind.SUPERVISOR_MIDDLEWARE].collection):
            found.extend(_usable(page.get("items") or ()))
        return tuple(sorted(found, key=lambda s: s.subject))


def _usable(bodies: Iterable[dict[str, object]]) -> Iterable[Stored]:
    for body in bodies:
        try:
            yield stored_from(Kind.SUPERVISOR_MIDDLEWARE, body)
        except (KeyError, TypeError, ValueError, AttributeError):
            continue


def _states(stored: Iterable[Stored]) -> frozenset[tuple[str, str]]:
    return frozenset((s.uid, s.resource_version) for s in stored)

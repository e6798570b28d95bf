"""The store of an operator that leads: it learns by its own writes that a newer operator leads."""

import asyncio
from typing import Any

import structlog

from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.snapshot import Kind, Stored
from supervisor_middleware.sources.cluster_api import ClusterApi
from supervisor_middleware.sources.cluster_kinds import WATCHED
from supervisor_middleware.sources.cluster_store import ClusterStore, Fenced

_log = structlog.get_logger(__name__)


class LeadersStore(ClusterStore):
    """The store of an operator that leads, which learns here when a newer one does."""

    def __init__(self, api: ClusterApi, *, epoch: int, **options: Any) -> None:
        """As `ClusterStore`; `epoch` is the one we lead with."""
        super().__init__(api, **options)
        self._reader, self._epoch = api, epoch
        self._overtaken: asyncio.Queue[tuple[int, Fenced]] = asyncio.Queue()

    async def write_status(self, stored: Stored, status: JsonObject) -> None:
        """As `ClusterStore`; besides, a status that a newer operator wrote ends `until_overtaken`."""
        try:
            await super().write_status(stored, status)
        except Fenced as error:
            # Refused for its epoch, but perhaps that of an old revision: the epoch that stands there decides.
            if (epoch := await self._epoch_of(stored)) > self._epoch:
                self._overtaken.put_nowait((epoch, error))
            raise

    async def until_overtaken(self) -> int:
        """Wait until a newer operator has written; its epoch. Two must not distribute side by side."""
        epoch, error = await self._overtaken.get()
        _log.warning("this operator steps down", reason=str(error))
        return epoch

    async def _epoch_of(self, stored: Stored) -> int:
        subject = stored.subject
        path = WATCHED[Kind(subject.kind)].path(subject.name, namespace=subject.namespace)
        match (await self._reader.get(path)).get("status"):
            case {"accepted": {"epoch": int() as epoch}}:
                return epoch
            case _:
                return 0

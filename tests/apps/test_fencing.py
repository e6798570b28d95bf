"""An operator that a newer one overtook learns it by its own writes."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from supervisor_middleware.apps.fencing import LeadersStore
from supervisor_middleware.model.snapshot import Stored
from supervisor_middleware.model.violation import Subject
from supervisor_middleware.sources.cluster_api import Refused
from supervisor_middleware.sources.cluster_store import Fenced

POLICY = Stored(
    subject=Subject(kind="SandboxPolicy", namespace="team-a", name="outbound"),
    uid="uid",
    generation=1,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    spec={},
)


class Api:
    """An API server that refuses writes because of `fields`, or takes them; `epoch` is what stands there."""

    def __init__(self, *fields: str, epoch: int | None = None) -> None:
        self.fields, self.epoch = frozenset(fields), epoch

    async def replace(self, _path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.fields:
            raise Refused("no", fields=self.fields)
        return body

    async def get(self, _path: str) -> dict[str, Any]:
        return {} if self.epoch is None else {"status": {"accepted": {"epoch": self.epoch}}}


class Absorber:
    def absorb(self, *_: object) -> None:
        """Nobody reads it."""


def a_store(api: Api) -> LeadersStore:
    return LeadersStore(
        api,  # type: ignore[arg-type]
        epoch=10,
        source=Absorber(),
        namespace="operator",
        instance="one",
        now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
    )


async def test_an_operator_that_a_newer_one_has_overtaken_steps_down() -> None:
    store = a_store(Api("status.accepted", epoch=11))
    watching = asyncio.create_task(store.until_overtaken())
    with pytest.raises(Fenced):
        await store.write_status(POLICY, {})
    assert await asyncio.wait_for(watching, 10) == 11


@pytest.mark.parametrize(
    ("api", "refusal"),
    [
        (Api("status.accepted", epoch=10), Fenced),
        (Api("status.accepted"), Fenced),
        (Api("status.stages", epoch=11), Refused),
    ],
    ids=["an old revision under our own epoch", "a status that is gone", "another field"],
)
async def test_any_other_refusal_changes_nothing_about_who_leads(api: Api, refusal: type[Exception]) -> None:
    store = a_store(api)
    watching = asyncio.create_task(store.until_overtaken())
    with pytest.raises(refusal):
        await store.write_status(POLICY, {})
    await asyncio.sleep(0)
    assert not watching.done()
    watching.cancel()


async def test_a_good_write_is_a_good_write() -> None:
    await a_store(Api()).write_status(POLICY, {})

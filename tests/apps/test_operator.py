"""What of the operator's wiring needs no cluster; the rest is in `e2e/`."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from supervisor_middleware.apps.operator import LeadersStore
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
    """An API server that refuses writes because of `fields`, or takes them."""

    def __init__(self, *fields: str) -> None:
        self.fields = frozenset(fields)

    async def replace(self, _path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.fields:
            raise Refused("no", fields=self.fields)
        return body


class Absorber:
    def absorb(self, *_: object) -> None:
        """Nobody reads it."""


def a_store(api: Api) -> LeadersStore:
    return LeadersStore(
        api, source=Absorber(), namespace="operator", instance="one", now=lambda: datetime(2026, 1, 1, tzinfo=UTC)
    )


async def test_an_operator_that_a_newer_one_has_overtaken_steps_down() -> None:
    store = a_store(Api("status.accepted"))
    watching = asyncio.create_task(store.until_fenced())
    with pytest.raises(Fenced):
        await store.write_status(POLICY, {})
    with pytest.raises(
        Fenced, match=r"^SandboxPolicy team-a/outbound: an operator of a newer epoch .*: this one steps down$"
    ):
        await asyncio.wait_for(watching, 10)


async def test_any_other_refusal_and_a_good_write_change_nothing_about_who_leads() -> None:
    store = a_store(Api("status.stages"))
    watching = asyncio.create_task(store.until_fenced())
    with pytest.raises(Refused):
        await store.write_status(POLICY, {})
    await a_store(Api()).write_status(POLICY, {})
    await asyncio.sleep(0)
    assert not watching.done()
    watching.cancel()

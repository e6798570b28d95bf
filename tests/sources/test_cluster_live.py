"""What is read live before a refusal: bounded, shared, and never kept."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from supervisor_middleware.control.doubts import Doubts
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.snapshot import Snapshot
from supervisor_middleware.sources.cluster_api import NotFound
from supervisor_middleware.sources.cluster_live import ClusterLive
from tests.builders import a_policy, a_registration
from tests.waiting import eventually

POLICIES = (a_policy("one"), a_policy("two"), a_policy("three"))
SNAPSHOT = Snapshot(
    policies=tuple(replace(p, uid=f"uid-{n}") for n, p in enumerate(POLICIES)),
    registrations=(replace(a_registration("acme"), uid="uid-acme", resource_version="7"),),
)
SUBJECTS = tuple(p.subject for p in SNAPSHOT.policies)


class FakeApi:
    """Answers by name; `registrations` are listed."""

    def __init__(self) -> None:
        self.uids = {p.subject.name: p.uid for p in SNAPSHOT.policies}
        self.registrations = [body("acme")]
        self.error: Exception | None = None
        self.gets: list[str] = []
        self.lists = 0
        self.going_on = asyncio.Event()
        self.going_on.set()

    async def get(self, path: str, *, form: object) -> dict[str, Any]:
        self.gets.append(path)
        if self.error is not None:
            raise self.error
        name = path.rpartition("/")[2]
        if name not in self.uids:
            raise NotFound(path)
        return {"metadata": {"name": name, "uid": self.uids[name]}}

    async def pages(self, path: str) -> AsyncIterator[dict[str, Any]]:
        self.lists += 1
        await self.going_on.wait()
        if self.error is not None:
            raise self.error
        yield {"items": self.registrations}


def body(name: str, *, version: str = "7") -> dict[str, Any]:
    metadata = {
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": version,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return {"metadata": metadata, "spec": {}}


@pytest.fixture
async def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def live(api: FakeApi) -> ClusterLive:
    return ClusterLive(api)  # type: ignore[arg-type]


async def test_what_is_as_the_cache_shows_it_changes_nothing(live: ClusterLive, api: FakeApi) -> None:
    doubtful = Doubts(registrations=True, policies=SUBJECTS)
    assert await live.updated(SNAPSHOT, doubtful) is SNAPSHOT


async def test_only_what_is_in_doubt_is_asked_about(live: ClusterLive, api: FakeApi) -> None:
    await live.updated(SNAPSHOT, Doubts(policies=SUBJECTS[:1]))
    assert (len(api.gets), api.lists) == (1, 0)
    await live.updated(SNAPSHOT, Doubts(registrations=True))
    assert (len(api.gets), api.lists) == (1, 1)


async def test_policies_that_are_gone_or_replaced_are_left_out(live: ClusterLive, api: FakeApi) -> None:
    del api.uids["one"]
    api.uids["two"] = "another"
    found = await live.updated(SNAPSHOT, Doubts(policies=SUBJECTS))
    assert [p.subject.name for p in found.policies] == ["three"]


async def test_registrations_are_as_they_are_now_and_what_is_none_is_left_out(
    live: ClusterLive, api: FakeApi
) -> None:
    api.registrations = [body("new"), body("acme", version="8"), {"metadata": {"name": "broken"}}]
    found = await live.updated(SNAPSHOT, Doubts(registrations=True))
    assert [(r.subject.name, r.resource_version) for r in found.registrations] == [("acme", "8"), ("new", "7")]


@pytest.mark.parametrize("doubtful", [Doubts(registrations=True), Doubts(policies=SUBJECTS)])
async def test_an_outage_is_one(doubtful: Doubts, live: ClusterLive, api: FakeApi) -> None:
    api.error = Unavailable("down")
    with pytest.raises(Unavailable):
        await live.updated(SNAPSHOT, doubtful)
    api.error = None
    assert await live.updated(SNAPSHOT, doubtful) is SNAPSHOT


async def test_many_who_ask_share_a_list_that_began_after_they_asked(live: ClusterLive, api: FakeApi) -> None:
    api.going_on.clear()
    doubtful = Doubts(registrations=True)
    first = asyncio.create_task(live.updated(SNAPSHOT, doubtful))
    await eventually(lambda: api.lists)
    api.registrations = [body("new")]
    later = [asyncio.create_task(live.updated(SNAPSHOT, doubtful)) for _ in range(50)]
    await asyncio.sleep(0)
    later.pop().cancel()
    api.going_on.set()
    found = await asyncio.gather(*later)
    assert {r.subject.name for s in found for r in s.registrations} == {"new"}
    assert api.lists == 2
    await first

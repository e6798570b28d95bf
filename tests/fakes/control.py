"""A cluster in memory, the supervisors on it and the services it asks: all that a reconciler sees.

    world = FakeWorld(registrations=[a_registration()], policies=[a_policy()], sandboxes=[a_sandbox()])
    control = a_control(world)
    await control.settle()
    assert control.distributor.stages("coder") == ["redact"]

`world` is `Source` and `Store` at once: what is written is in the next snapshot, writes of what was not read fail.
`world.acts` lists every write in order, `world.fail` makes chosen writes fail.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from supervisor_middleware.audit.events import Changed, ChangeKind, Event
from supervisor_middleware.audit.ocsf import records
from supervisor_middleware.compiler.questions import Question
from supervisor_middleware.control.reconciler import Reconciler
from supervisor_middleware.distribution.ledger import NOT_CONNECTED, State, View
from supervisor_middleware.distribution.offers import Assignment
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.generation import Sealed
from supervisor_middleware.model.registration import Connection
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.model.snapshot import POLICY_KINDS, Snapshot, Stored, StoredRevision
from supervisor_middleware.model.verdict import (
    Accepted,
    Described,
    Description,
    Outage,
    Unreachable,
    Verdict,
    VerdictKey,
)
from supervisor_middleware.model.violation import Subject
from supervisor_middleware.telemetry import ControlMetrics
from tests.audit.schema import problems
from tests.builders import NAMESPACES, NOW, a_manifest, some_settings

DOWN: Final = Unreachable(Outage.CONNECTION_FAILED)


class FakeWorld:
    """`Source` and `Store`."""

    def __init__(
        self,
        *,
        registrations: Iterable[Stored] = (),
        policies: Iterable[Stored] = (),
        sandboxes: Iterable[Sandbox] = (),
        revisions: Iterable[StoredRevision] = (),
    ) -> None:
        self.objects = {s.uid: replace(s, resource_version="1") for s in (*registrations, *policies)}
        self.sandboxes = list(sandboxes)
        self.namespaces: dict[str, Mapping[str, str]] = dict(NAMESPACES)
        self.revisions = {r.name: r for r in revisions}
        self.unknown: frozenset[str] = frozenset()
        self.acts: list[str] = []
        self.notices: list[tuple[str, str]] = []
        self.snapshots = 0
        self.is_away = False
        self.fail: Callable[[str], Exception | None] = lambda _: None

    def put(self, stored: Stored) -> None:
        """Apply a new spec as an API server would: status and UID stay."""
        before = self.objects.get(stored.uid)
        if before is not None:
            version = str(int(before.resource_version) + 1)
            generation = before.generation + (before.spec != stored.spec)
            stored = replace(stored, status=before.status, resource_version=version, generation=generation)
        else:
            stored = replace(stored, resource_version="1")
        self.objects[stored.uid] = stored

    def remove(self, uid: str) -> None:
        del self.objects[uid]

    def status(self, uid: str) -> Mapping[str, Any]:
        return self.objects[uid].status

    def condition(self, uid: str, kind: str) -> tuple[str, str]:
        found = {c["type"]: (c["status"], c["reason"]) for c in self.status(uid).get("conditions", ())}
        return found.get(kind, ("", ""))

    async def snapshot(self) -> Snapshot:
        self.snapshots += 1
        if self.is_away:
            raise Unavailable("the API server is away")
        by_kind: dict[str, list[Stored]] = {}
        for stored in self.objects.values():
            by_kind.setdefault(stored.subject.kind, []).append(stored)
        return Snapshot(
            registrations=tuple(by_kind.get("SupervisorMiddleware", ())),
            policies=tuple(p for kind in POLICY_KINDS for p in by_kind.get(kind, ())),
            revisions=tuple(self.revisions.values()),
            sandboxes=tuple(self.sandboxes),
            namespaces=dict(self.namespaces),
            unknown=self.unknown,
        )

    async def save_revision(self, stored: StoredRevision) -> None:
        self._act(f"save {stored.name}")
        known = self.revisions.setdefault(stored.name, stored)
        if known.digest != stored.digest:
            raise Unavailable("it says something else")

    async def delete_revision(self, name: str) -> None:
        self._act(f"delete {name}")
        self.revisions.pop(name, None)

    async def write_status(self, stored: Stored, status: JsonObject) -> None:
        self._act(f"status {stored.subject.name}")
        known = self.objects[stored.uid]
        if known.resource_version != stored.resource_version:
            raise Unavailable("the object changed since it was read")
        self.objects[stored.uid] = replace(
            known, status=status, resource_version=str(int(known.resource_version) + 1)
        )

    async def publish_bundle(self, pem: bytes, *, namespaces: frozenset[str]) -> None:
        self._fail(f"bundle {','.join(sorted(namespaces))}")

    async def notify(self, subject: Subject, *, uid: str, reason: str, message: str, weight: str) -> None:
        self._fail(f"notify {subject.name}")
        self.notices.append((subject.name, reason))

    def _act(self, act: str) -> None:
        self._fail(act)
        self.acts.append(act)

    def _fail(self, act: str) -> None:
        if self.is_away:
            raise Unavailable("the API server is away")
        if (error := self.fail(act)) is not None:
            raise error


class FakeDistributor:
    """Supervisors that run at once what they are offered, if they are connected."""

    def __init__(self, acts: list[str]) -> None:
        self.generations: Mapping[str, Sealed] = {}
        self.published = list[Mapping[str, Sealed]]()
        self.connected: set[str] = set()
        self.running: dict[str, str] = {}
        self.acts = acts

    async def publish(self, changes: Mapping[str, Assignment | None]) -> None:
        generations = {**self.generations, **{k: a.sealed for k, a in changes.items() if a is not None}}
        for key in [key for key, assigned in changes.items() if assigned is None]:
            generations.pop(key, None)
        if generations != self.generations:
            self.acts.append("publish")
        self.generations = generations
        self.published.append(self.generations)
        self.running.update({k: generations[k].digest for k in self.connected if k in generations})

    def view(self, key: str, digest: str) -> View:
        if key not in self.connected:
            return NOT_CONNECTED
        is_active = self.running.get(key) == digest
        return View(is_connected=True, state=State.ACTIVE if is_active else State.IDLE, is_active=is_active)

    def stages(self, name: str) -> list[str]:
        """The keys of the stages the sandbox `name` should run; one that cannot run is marked."""
        sealed = self.generations[f"uid-of-team-a-{name}"]
        return [s.key + (f" ({s.unresolved})" if s.unresolved else "") for s in sealed.generation.stages]


class FakeAsker:
    """Services that say yes at once, unless told otherwise."""

    def __init__(self) -> None:
        self.descriptions: dict[str, Description] = {}
        self.verdicts: dict[str, Verdict] = {}
        self.delay = 0.0
        self.error: Exception | None = None
        self.described: list[str] = []
        self.asked: list[str] = []
        self.kept: frozenset[Connection] = frozenset()

    async def describe(self, connection: Connection, *, registration_name: str) -> Description:
        self.described.append(registration_name)
        await self._work()
        return self.descriptions.get(registration_name, Described(a_manifest()))

    async def ask(self, questions: Sequence[Question], *, deadline: timedelta) -> Mapping[VerdictKey, Verdict]:
        self.asked.extend(q.key.binding for q in questions)
        await self._work()
        return {q.key: self.verdicts.get(q.key.binding, Accepted()) for q in questions}

    def forget(self, keep: frozenset[Connection]) -> None:
        self.kept = keep

    async def _work(self) -> None:
        await asyncio.sleep(self.delay)
        if self.error is not None:
            raise self.error


class Control:
    """A reconciler and its surroundings."""

    def __init__(self, world: FakeWorld, asker: FakeAsker, *, settings: CompilerSettings, epoch: int) -> None:
        self.world, self.asker = world, asker
        self.distributor = FakeDistributor(world.acts)
        self.time = NOW
        self.audited: list[Event] = []
        self.metrics = ControlMetrics()
        self.reconciler = Reconciler(
            source=world,
            store=world,
            distributor=self.distributor,
            asker=asker,
            settings=settings,
            epoch=epoch,
            trust_bundle=lambda: b"bundle",
            now=self.now,
            emit=self._audit,
            metrics=self.metrics,
        )

    def now(self) -> datetime:
        return self.time

    async def settle(self) -> None:
        """Passes until nothing is asked or written any more."""
        for _ in range(10):
            before = len(self.world.acts), len(self.asker.asked), len(self.asker.described)
            await self.reconciler.reconcile()
            while self.reconciler._inquiries._tasks or self.reconciler._collector.is_collecting:  # noqa: ASYNC110 - tasks that end at once
                await asyncio.sleep(0)
            if before == (len(self.world.acts), len(self.asker.asked), len(self.asker.described)):
                return
        raise AssertionError("it never settles")

    async def later(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)
        await self.settle()

    def changes(self) -> list[str]:
        """What the audit trail says of objects; `published` says it of generations."""
        return [e.kind.value for e in self._changed() if e.kind is not ChangeKind.GENERATION_PUBLISHED]

    def published(self) -> list[tuple[str, str]]:
        """For whom a generation was published, and why or which."""
        found = [e for e in self._changed() if e.kind is ChangeKind.GENERATION_PUBLISHED]
        return [(e.subject, e.reason or e.digest) for e in found]

    def _changed(self) -> list[Changed]:
        return [e for e in self.audited if isinstance(e, Changed)]

    def _audit(self, event: Event) -> None:
        for record in records(event, time=self.time, product_version="1", device="operator"):
            assert not problems(record)
        self.audited.append(event)


def a_control(
    world: FakeWorld, *, asker: FakeAsker | None = None, settings: CompilerSettings | None = None, epoch: int = 7
) -> Control:
    """A new operator process over `world`."""
    return Control(world, asker or FakeAsker(), settings=settings or some_settings(), epoch=epoch)

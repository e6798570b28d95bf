"""`smw plan`: what a change to policies does, sandbox by sandbox, before anybody applies it.

Two folders are compared as what runs of them, not as text. A sandbox that is only assumed is looked at on both sides,
so that a policy which is removed shows as what its sandboxes lose.

Exit codes: 0 here is the plan, 1 what it leads to is not valid or (asked for) protects less, 2 it could not be told.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TextIO, TypeAlias

from supervisor_middleware.cli.offline.complaints import complain
from supervisor_middleware.cli.offline.scopes import Scope
from supervisor_middleware.cli.offline.world import Options as Offline
from supervisor_middleware.cli.offline.world import World, gathered
from supervisor_middleware.cli.options import Strictness
from supervisor_middleware.cli.plan.render import Effect, ObjectChange, Plan, render
from supervisor_middleware.cli.plan.words import Mark
from supervisor_middleware.cli.rendering.forms import Form
from supervisor_middleware.compiler.composition import compose
from supervisor_middleware.compiler.differences import difference
from supervisor_middleware.compiler.structure import path_of
from supervisor_middleware.model.generation import Generation
from supervisor_middleware.model.sandbox import NAMESPACE_LABEL, Sandbox
from supervisor_middleware.model.violation import Reason, Subject

Place: TypeAlias = tuple[str, str, tuple[tuple[str, str], ...]]
"""What makes a sandbox the same on both sides: its name, or if it is assumed its labels."""


_KEYED: Final = frozenset({"networkMiddlewares", "networkPolicies"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is compared with what."""

    before: Offline
    after: Offline
    form: Form = Form.TABLE
    strictness: Strictness = Strictness.TELL


def run(options: Options, *, out: TextIO | None = None, err: TextIO | None = None) -> int:
    """Compare and show; returns the exit code.

    Raises:
        InvalidInput: a path does not exist, or an option makes no sense.
    """
    out, err = out or sys.stdout, err or sys.stderr
    before, after = (gathered(side, err=err) for side in (options.before, options.after))
    if before.is_empty:
        complain(before, err)
    is_invalid = complain(after, err)
    plan = plan_of(before, after)
    render(plan, options.form, locate=after.locate, out=out)
    is_bad = options.strictness is Strictness.FAIL and plan.is_loss
    return 1 if is_invalid or is_bad else 0


def plan_of(before: World, after: World) -> Plan:
    """Everything that changes."""
    sides = _Side.of(before), _Side.of(after)
    return Plan(
        is_valid=after.report.is_valid,
        was_valid=before.report.is_valid,
        objects=tuple(sorted(_objects(before, after), key=lambda c: (c.subject, c.mark))),
        effects=tuple(_effects(*sides)),
        conflicted=tuple(sorted(_conflicted(after) - _conflicted(before))),
        assumed=tuple(sorted({binding for w in (before, after) for binding in w.assumed(w.stages)})),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One of the two worlds, by place."""

    world: World
    scopes: Mapping[Place, Scope]

    @classmethod
    def of(cls, world: World) -> "_Side":
        return cls(world=world, scopes={_place(s): s for s in world.scopes})

    def generation(self, place: Place, sandbox: Sandbox) -> Generation:
        """What the sandbox runs here, whether this side has thought of it or not."""
        scope = self.scopes.get(place)
        if scope is not None:
            return scope.generation
        world = self.world
        labels = world.snapshot.namespaces.get(sandbox.namespace, {NAMESPACE_LABEL: sandbox.namespace})
        found, _ = compose(
            sandbox,
            world.revisions,
            namespace_labels=labels,
            bindings=world.bindings,
            settings=world.settings,
        )
        return found


def _place(scope: Scope) -> Place:
    sandbox = scope.sandbox
    if scope.is_assumed:
        return sandbox.namespace, "", tuple(sorted(sandbox.labels.items()))
    return sandbox.namespace, sandbox.name, ()


def _effects(before: _Side, after: _Side) -> Iterator[Effect]:
    """One for each way in which sandboxes change; those of the same two generations change alike."""
    groups: dict[tuple[Mark, bytes, bytes], tuple[list[str], Generation, Generation]] = {}
    for place in sorted({*before.scopes, *after.scopes}):
        scope = after.scopes.get(place) or before.scopes[place]
        mark = _mark(place, scope, before, after)
        was = Generation() if mark is Mark.ADDED else before.generation(place, scope.sandbox)
        now = Generation() if mark is Mark.REMOVED else after.generation(place, scope.sandbox)
        if was != now or mark is not Mark.CHANGED:
            group = groups.setdefault((mark, was.payload(), now.payload()), ([], was, now))
            group[0].append(scope.title)
    for (mark, *_), (titles, was, now) in groups.items():
        yield Effect(mark=mark, titles=tuple(titles), difference=difference(was, now))


def _mark(place: Place, scope: Scope, before: _Side, after: _Side) -> Mark:
    """An assumed sandbox neither comes nor goes: it may be there all the time."""
    if scope.is_assumed or (place in before.scopes and place in after.scopes):
        return Mark.CHANGED
    return Mark.ADDED if place in after.scopes else Mark.REMOVED


def _objects(before: World, after: World) -> Iterator[ObjectChange]:
    """Registrations and policies that come, go or are not what they were; sandboxes show in what they run."""
    was, now = (
        {s.subject: s.spec for s in (*w.snapshot.registrations, *w.snapshot.policies)} for w in (before, after)
    )
    for subject in {*was, *now}:
        if subject not in was:
            yield ObjectChange(mark=Mark.ADDED, subject=subject)
        elif subject not in now:
            yield ObjectChange(mark=Mark.REMOVED, subject=subject)
        elif was[subject] != now[subject]:
            yield ObjectChange(mark=Mark.CHANGED, subject=subject, fields=_fields(was[subject], now[subject]))


def _fields(was: object, now: object) -> tuple[str, ...]:
    """The fields of a spec that differ, and which entries of those that hold several."""
    if not isinstance(was, Mapping) or not isinstance(now, Mapping):
        return ("spec",)
    names = [n for n in dict.fromkeys((*was, *now)) if was.get(n) != now.get(n)]
    return tuple(path for name in names for path in _paths(name, was.get(name), now.get(name)))


def _paths(name: str, was: object, now: object) -> Iterator[str]:
    if name not in _KEYED or not isinstance(was, Mapping) or not isinstance(now, Mapping):
        yield path_of((name,))
        return
    yield from (path_of((name, str(k))) for k in dict.fromkeys((*was, *now)) if was.get(k) != now.get(k))


def _conflicted(world: World) -> set[Subject]:
    return {v.subject for v in world.report.violations if v.reason is Reason.CONFLICTED}

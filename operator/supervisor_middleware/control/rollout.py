"""From accepted revisions to what every sandbox runs. PURE, and remembering what it composed.

Sandboxes with equal inputs share one sealed generation: composed and serialized once, however many they are. A change
costs what the sandboxes cost that it concerns.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from supervisor_middleware.compiler.binding import Bindings
from supervisor_middleware.compiler.composition import compose_selected
from supervisor_middleware.control.selection import Selection
from supervisor_middleware.distribution.offers import Assignment
from supervisor_middleware.model.generation import Sealed, seal
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.model.violation import Report, Violation, report


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """What every sandbox should run, by supervisor key; which policies conflict where.

    A view of the composer's latest roll-out, good until the next: a copy would cost what every sandbox costs.
    A sandbox whose namespace is not known yet is in none of it: it runs what it has, a new one stays closed.
    """

    generations: Mapping[str, Sealed]
    changes: Mapping[str, Assignment | None]
    """Those of them that are not published yet; None for a sandbox that runs nothing of ours any more."""
    matched: "Matched"
    conflicts: Mapping[str, Report]
    """What a conflicted policy (by UID) is told."""


@dataclass(frozen=True, slots=True)
class Matched:
    """Supervisor keys that a policy (by UID) selects; a view like `Rollout`."""

    _selection: Selection

    def __getitem__(self, uid: str) -> tuple[str, ...]:
        return self._selection.selected(uid)

    def sandbox(self, key: str) -> Sandbox:
        """The sandbox of a supervisor that some policy selects."""
        return self._selection.sandbox(key)


_Input: TypeAlias = tuple[str, str, str, str, str]
"""UID and digest, and what no digest covers: which entries cannot run, the name, and the age, by which it stands."""
_Inputs: TypeAlias = tuple[_Input, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Composed:
    """One generation of all sandboxes of equal inputs, and what policies (by UID) are told of it.

    Once a generation, not once a sandbox: many conflicts of many sandboxes would hold up the leader.
    """

    sealed: Sealed
    bindings: frozenset[str]
    told: Mapping[str, tuple[Violation, ...]]


class Composer:
    """Composes, and keeps the result for as long as its inputs stay."""

    def __init__(self, settings: CompilerSettings) -> None:
        """`settings` are fixed for a run."""
        self._settings = settings
        self.compositions = 0
        """How many generations were made so far: as many as there were distinct ones."""
        self._unpublished: set[str] = set()
        self._forget()

    def _forget(self) -> None:
        self._bindings: Bindings | None = None
        self._selection = Selection()
        self._composed: dict[_Inputs, _Composed] = {}
        self._users: Counter[_Inputs] = Counter()
        self._running: dict[str, _Inputs] = {}
        self._generations: dict[str, Sealed] = {}
        self._told: dict[str, dict[_Inputs, tuple[Violation, ...]]] = {}
        self._conflicts: dict[str, Report] = {}
        self._doubtful: set[str] = set()

    def roll_out(
        self,
        sandboxes: Iterable[Sandbox],
        revisions: Sequence[Revision],
        *,
        namespaces: Mapping[str, Mapping[str, str]],
        bindings: Bindings,
    ) -> Rollout:
        """The generation of each sandbox."""
        with self._whole():
            concerned = self._selection.update(sandboxes, revisions, namespaces)
            if self._bindings is not None and self._bindings is not bindings:
                concerned |= self._rebind(bindings.changed_since(self._bindings))
            self._bindings = bindings
            if concerned:
                self._recompose(concerned, bindings)
        return self._rollout()

    def replace(self, revision: Revision, *, bindings: Bindings) -> Rollout:
        """The same after one policy changed and nothing else: it costs what its sandboxes cost."""
        with self._whole():
            concerned = self._selection.put_revision(revision)
            if concerned:
                self._recompose(concerned, bindings)
        return self._rollout()

    def published(self) -> None:
        """The changes of the latest roll-out are where they belong."""
        self._unpublished.clear()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """What breaks off half-way is forgotten: the next attempt would take it for done."""
        try:
            yield
        except BaseException:
            self._unpublished |= self._generations.keys()
            self._forget()
            raise

    def _rollout(self) -> Rollout:
        return Rollout(
            generations=self._generations,
            changes={key: self._assignment(key) for key in self._unpublished},
            matched=Matched(self._selection),
            conflicts=self._conflicts,
        )

    def _assignment(self, key: str) -> Assignment | None:
        sealed = self._generations.get(key)
        return None if sealed is None else Assignment(sandbox=self._selection.sandbox(key), sealed=sealed)

    def _rebind(self, changed: frozenset[str]) -> set[str]:
        """Forget what was composed of bindings that are others now; the sandboxes it is of."""
        stale = {inputs for inputs, composed in self._composed.items() if composed.bindings & changed}
        keys = {key for key, inputs in self._running.items() if inputs in stale}
        for key in keys:
            del self._running[key]
        for inputs in stale:
            self._drop(inputs)
        return keys

    def _recompose(self, concerned: Iterable[str], bindings: Bindings) -> None:
        left = set[_Inputs]()
        for key in concerned:
            self._unpublished.add(key)
            if (before := self._running.pop(key, None)) is not None:
                self._users[before] -= 1
                left.add(before)
            selecting = self._selection.selecting(key)
            if selecting is None:
                self._generations.pop(key, None)
                continue
            inputs = tuple(sorted(_input(r) for r in selecting))
            if inputs not in self._composed:
                self._add(inputs, self._compose(selecting, bindings))
            self._running[key] = inputs
            self._users[inputs] += 1
            self._generations[key] = self._composed[inputs].sealed
        for inputs in left:
            if not self._users[inputs]:
                self._drop(inputs)
        self._report()

    def _compose(self, selecting: Sequence[Revision], bindings: Bindings) -> _Composed:
        self.compositions += 1
        generation, found = compose_selected(selecting, bindings=bindings, settings=self._settings)
        uids = {r.policy: r.uid for r in selecting}
        told: dict[str, list[Violation]] = {}
        for violation in found.violations:
            told.setdefault(uids[violation.subject], []).append(violation)
        return _Composed(
            sealed=seal(generation),
            bindings=frozenset(s.binding for s in generation.stages),
            told={uid: tuple(v) for uid, v in told.items()},
        )

    def _add(self, inputs: _Inputs, composed: _Composed) -> None:
        self._composed[inputs] = composed
        for uid, violations in composed.told.items():
            self._told.setdefault(uid, {})[inputs] = violations
        self._doubtful |= composed.told.keys()

    def _drop(self, inputs: _Inputs) -> None:
        del self._users[inputs]
        told = self._composed.pop(inputs).told
        for uid in told:
            del self._told[uid][inputs]
        self._doubtful |= told.keys()

    def _report(self) -> None:
        """Anew for those only that are told something else now."""
        for uid in self._doubtful:
            told = self._told.get(uid)
            if told:
                self._conflicts[uid] = report(v for violations in told.values() for v in violations)
            else:
                self._told.pop(uid, None)
                self._conflicts.pop(uid, None)
        self._doubtful.clear()


def _input(revision: Revision) -> _Input:
    unresolved = ",".join(e.unresolved or "" for e in revision.entries)
    return revision.uid, revision.digest, unresolved, str(revision.policy), revision.created_at.isoformat()

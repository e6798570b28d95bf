"""From accepted revisions to what every sandbox runs. PURE, and remembering what it composed.

Sandboxes with equal inputs share one sealed generation: composed and serialized once, however many they are.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from supervisor_middleware.compiler.binding import Bindings
from supervisor_middleware.compiler.composition import compose, selects
from supervisor_middleware.model.generation import Sealed, seal
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.model.violation import Report, Violation, report

LEAVING_GRACE: Final = timedelta(seconds=10)
"""How long a deleted policy still applies, so that `kubectl replace --force` opens no window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """What every sandbox should run, by supervisor key; which policies conflict where."""

    generations: Mapping[str, Sealed]
    matched: Mapping[str, tuple[str, ...]]
    """Supervisor keys each policy (by UID) selects."""
    conflicts: Mapping[str, Report]
    """What a conflicted policy (by UID) is told."""


_Input: TypeAlias = tuple[str, str, str]
"""UID, digest, and which entries cannot run: a digest does not cover that."""


class Composer:
    """Composes, and keeps the result for as long as its inputs stay."""

    def __init__(self, settings: CompilerSettings) -> None:
        """`settings` are fixed for a run."""
        self._settings = settings
        self._bindings: Bindings | None = None
        self._known: dict[tuple[_Input, ...], tuple[Sealed, tuple[Violation, ...]]] = {}
        self._inputs: dict[int, tuple[Revision, _Input]] = {}

    def roll_out(self, sandboxes: Iterable[Sandbox], revisions: Sequence[Revision], *, bindings: Bindings) -> Rollout:
        """The generation of each sandbox."""
        if self._bindings != bindings:
            self._bindings, self._known = bindings, {}
        by_namespace: dict[str, list[Revision]] = {}
        for revision in revisions:
            by_namespace.setdefault(revision.policy.namespace or "", []).append(revision)
        self._inputs = {id(r): self._input(r) for r in revisions}
        uids = {r.policy: r.uid for r in revisions}
        used, generations = {}, {}
        matched: dict[str, list[str]] = {}
        told: dict[str, list[Violation]] = {}
        for sandbox in sandboxes:
            selecting = [r for r in by_namespace.get(sandbox.namespace, ()) if selects(r, sandbox)]
            key = tuple(sorted(self._inputs[id(r)][1] for r in selecting))
            if key not in used:
                used[key] = self._known.get(key) or self._compose(sandbox, selecting, bindings)
                self._known[key] = used[key]
                # Once a generation, not once a sandbox: many conflicts of many sandboxes would hold up the leader.
                for violation in used[key][1]:
                    told.setdefault(uids[violation.subject], []).append(violation)
            generations[sandbox.key] = used[key][0]
            for revision in selecting:
                matched.setdefault(revision.uid, []).append(sandbox.key)
        self._known = used
        return Rollout(
            generations=generations,
            matched={uid: tuple(keys) for uid, keys in matched.items()},
            conflicts={uid: report(violations) for uid, violations in told.items()},
        )

    def _input(self, revision: Revision) -> tuple[Revision, _Input]:
        """What `revision` puts into a generation; to digest it is the dear part, so it is done once an object."""
        known = self._inputs.get(id(revision))
        if known is not None and known[0] is revision:
            return known
        unresolved = ",".join(e.unresolved or "" for e in revision.entries)
        return revision, (revision.uid, revision.digest, unresolved)

    def _compose(
        self, sandbox: Sandbox, selecting: Sequence[Revision], bindings: Bindings
    ) -> tuple[Sealed, tuple[Violation, ...]]:
        generation, found = compose(sandbox, selecting, bindings=bindings, settings=self._settings)
        return seal(generation), found.violations


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """What applies, and policies among it that were deleted a moment ago. A value: an attempt may be given up."""

    present: Mapping[str, Revision] = field(default_factory=dict)
    gone: Mapping[str, tuple[Revision, datetime]] = field(default_factory=dict)

    def after(
        self, accepted: Mapping[str, Revision], fallbacks: Mapping[str, Revision], *, now: datetime
    ) -> "Leaving":
        """Take in the policies there are, by UID.

        A policy that came back under the same name replaces what left once it is accepted. Until then, for the grace
        at most, what left applies instead of the newcomer's fallback: a replacement neither opens a window nor closes
        the hosts while services are asked.
        """
        there = accepted.keys() | fallbacks.keys()
        leaving = {uid: (revision, now) for uid, revision in self.present.items() if uid not in there}
        replaced = {r.policy for r in accepted.values()}
        gone = {
            uid: (revision, since)
            for uid, (revision, since) in {**leaving, **self.gone}.items()
            if uid not in there and revision.policy not in replaced and since + LEAVING_GRACE > now
        }
        staying = {revision.policy for revision, _ in gone.values()}
        present = {**accepted, **{u: r for u, r in fallbacks.items() if r.policy not in staying}}
        return Leaving(present=present, gone=gone)

    @property
    def applying(self) -> tuple[Revision, ...]:
        """Every revision that applies."""
        return (*self.present.values(), *(revision for revision, _ in self.gone.values()))

    def next_due(self) -> datetime | None:
        """When the next of them has left for good."""
        return min((since + LEAVING_GRACE for _, since in self.gone.values()), default=None)

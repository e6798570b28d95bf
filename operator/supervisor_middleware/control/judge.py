"""Judges policies, and remembers what it judged for as long as its inputs stay. PURE.

A pass looks at every policy, but most have not changed since the last: reading ten configs of 64 KiB takes a tenth of
a second, which one tenant could cost everybody at each pass. So a change costs what the policies cost that it
concerns, and the others a glance. Nor do the others cost memory: of a policy that is accepted as it stands, only what
it asks of whom is remembered, which many policies share; it is read again if any of that changes. One judge a
reconciler.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from supervisor_middleware.compiler.binding import Bindings
from supervisor_middleware.compiler.checks import PolicyInput
from supervisor_middleware.compiler.drafts import PolicyDraft, draft_policy
from supervisor_middleware.compiler.pipeline import compile_draft
from supervisor_middleware.compiler.questions import Question, questions
from supervisor_middleware.control.acceptances import Acceptances
from supervisor_middleware.control.inputs import Around, Asks, Inputs, Wants, asks_of, wants_of
from supervisor_middleware.control.registrations import Registry
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.model.snapshot import Stored, StoredRevision
from supervisor_middleware.model.verdict import Verdict, VerdictKey
from supervisor_middleware.model.violation import Reason, Report, Violation
from supervisor_middleware.registry.catalog import Catalog

_SPARE: Final = 1000
"""Of what nobody asks any more, besides as many as there are policies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A policy as it was read."""

    draft: PolicyDraft
    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What a policy compiles to: a revision only if nothing is wrong."""

    revision: Revision | None
    digest: str
    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDecision:
    """One policy. `compiled` None: an answer it needs is still under way; `accepted` is what is in force until then.

    `questions` are those whose answer the accepted revision does not hold already.
    """

    stored: Stored
    questions: tuple[Question, ...]
    compiled: Compiled | None
    accepted: StoredRevision | None
    fallback: Revision | None
    """What sandboxes run of a policy that was never accepted."""

    @property
    def fresh(self) -> Revision | None:
        """A revision to be committed: valid, and not what is accepted already."""
        if self.compiled is None or (self.accepted is not None and self.accepted.digest == self.compiled.digest):
            return None
        return self.compiled.revision


@dataclass(slots=True, kw_only=True)
class _Known:
    """One policy. `read` None: it is valid, and what was read of it is dropped."""

    stored: Stored
    asks: Asks
    read: Read | None
    asked: tuple[Wants, StoredRevision | None, tuple[Question, ...]] | None = None
    inputs: Inputs | None = None
    compiled: Compiled | None = None
    """What came of `inputs`."""
    around: Around | None = None
    decision: PolicyDecision | None = None
    """What came of `around`."""


@dataclass(slots=True)
class Judge:
    """What was read, compiled and decided, by the policy's UID. `compilations` counts."""

    settings: CompilerSettings
    compilations: int = 0
    acceptances: Acceptances = field(default_factory=Acceptances)
    _known: dict[str, _Known] = field(default_factory=dict)
    _fallbacks: dict[str, Revision | None] = field(default_factory=dict)
    _wants: dict[Asks, Wants] = field(default_factory=dict)
    _bindings: Bindings | None = None

    def knows(self, stored: Stored) -> bool:
        """Whether the policy was read as it is."""
        known = self._known.get(stored.uid)
        return known is not None and (known.stored is stored or _identity(known.stored) == _identity(stored))

    def read(self, stored: Stored) -> Read:
        """The policy, read once a spec unless it was dropped meanwhile."""
        return self._read(self._look_up(stored))

    def around(self, registry: Registry, catalog: Catalog) -> Around:
        """What a pass judges in; the bindings are the object of the last pass if nothing changed."""
        if self._bindings is None or self._bindings != registry.bindings:
            self._bindings = registry.bindings
            self._wants.clear()
        return Around(
            bindings=self._bindings,
            pending=registry.pending,
            is_incomplete=registry.is_incomplete,
            version=catalog.version,
        )

    def decide(
        self, stored: Stored, catalog: Catalog, *, around: Around, accepted: StoredRevision | None
    ) -> PolicyDecision:
        """Judge one policy, unless nothing that it could depend on has changed. `around` is the latest."""
        known = self._known.get(stored.uid)
        if known is not None and known.around is not None and known.decision is not None:
            decision = known.decision
            if decision.stored is stored and decision.accepted is accepted and known.around.is_same(around):
                return decision
        known = self._look_up(stored)
        decision = self._decide(known, catalog, around=around, accepted=accepted)
        if not decision.questions:
            known.asked = None
        known.around, known.decision = around, decision
        if decision.compiled is not None and decision.compiled.revision is not None:
            known.read = None
        return decision

    def keep(self, uids: frozenset[str]) -> None:
        """Forget policies that are gone."""
        for uid in self._known.keys() - uids:
            del self._known[uid]
            self._fallbacks.pop(uid, None)
        if len(self._wants) > len(self._known) + _SPARE:
            self._wants.clear()

    def _look_up(self, stored: Stored) -> _Known:
        """What is known of the policy as it is, which is nothing but what it says if it is new."""
        if not self.knows(stored):
            read = _read(stored)
            self._known[stored.uid] = _Known(stored=stored, asks=asks_of(read.draft), read=read)
            self._fallbacks.pop(stored.uid, None)
        known = self._known[stored.uid]
        # Not the one before, which is of no use any more.
        known.stored = stored
        return known

    def _decide(
        self, known: _Known, catalog: Catalog, *, around: Around, accepted: StoredRevision | None
    ) -> PolicyDecision:
        wants = self._wants_of(known, around.bindings)
        standing = None if accepted is None else accepted.revision
        held = frozenset[str]() if standing is None else standing.verdicts
        asked: tuple[Question, ...] = ()
        if not held.issuperset(wants.keys.values()):
            asked = self._ask(known, wants, around.bindings, accepted=accepted)
        compiled = None
        if not any(catalog.is_unasked(q.key) for q in asked):
            answers = wants.answers(catalog.verdicts, held=held)
            inputs = Inputs(
                wants=wants,
                hints=(around.bindings, around.pending) if None in wants.bound else None,
                accepted=accepted,
                answers=answers,
            )
            compiled = self._compile(known, inputs, catalog.verdicts, around=around)
        if compiled is not None and around.is_incomplete and _misses_a_binding(compiled.report):
            compiled = None
        fallback = self._fallback(known) if accepted is None else None
        if fallback is None:
            self._fallbacks.pop(known.stored.uid, None)
        return PolicyDecision(
            stored=known.stored, questions=asked, compiled=compiled, accepted=accepted, fallback=fallback
        )

    def _ask(
        self, known: _Known, wants: Wants, bindings: Bindings, *, accepted: StoredRevision | None
    ) -> tuple[Question, ...]:
        """Made once for what is bound and accepted."""
        if known.asked is not None and known.asked[0] is wants and known.asked[1] is accepted:
            return known.asked[2]
        standing = None if accepted is None else accepted.revision
        found = questions(self._read(known).draft, bindings, accepted=standing)
        known.asked = (wants, accepted, found)
        return found

    def _fallback(self, known: _Known) -> Revision | None:
        """Made once a spec, and kept for those only that need it."""
        uid = known.stored.uid
        if uid not in self._fallbacks:
            self._fallbacks[uid] = self._read(known).draft.as_unresolved()
        return self._fallbacks[uid]

    def _compile(
        self, known: _Known, inputs: Inputs, verdicts: Mapping[VerdictKey, Verdict], *, around: Around
    ) -> Compiled:
        accepted = inputs.accepted
        if known.inputs is not None and known.compiled is not None:
            before, compiled = known.inputs, known.compiled
            is_same = inputs.is_same(before)
            if not is_same and accepted is not None and inputs.hold(before, digest=compiled.digest):
                is_same, compiled = True, _held(accepted, compiled.report)
            if is_same:
                # With the newest inputs: nothing of earlier bindings stays.
                known.inputs, known.compiled = inputs, compiled
                return compiled
        read = self._read(known)
        given = PolicyInput(
            draft=read.draft,
            bindings=around.bindings,
            verdicts=verdicts,
            settings=self.settings,
            accepted=None if accepted is None else accepted.revision,
            pending=around.pending,
        )
        found = compile_draft(given, read.violations)
        self.compilations += 1
        compiled = Compiled(revision=found.revision, digest=found.digest, report=found.report)
        if accepted is not None and accepted.digest == found.digest:
            compiled = _held(accepted, found.report)
        known.inputs, known.compiled = inputs, compiled
        return compiled

    def _read(self, known: _Known) -> Read:
        if known.read is None:
            known.read = _read(known.stored)
        return known.read

    def _wants_of(self, known: _Known, bindings: Bindings) -> Wants:
        wants = self._wants.get(known.asks)
        if wants is None:
            wants = self._wants[known.asks] = wants_of(known.asks, bindings)
        known.asks = wants.asks
        return wants


def _read(stored: Stored) -> Read:
    draft, violations = draft_policy(stored)
    return Read(draft=draft, violations=tuple(violations))


def _held(accepted: StoredRevision, found: Report) -> Compiled:
    """What compiles to what is accepted: the same is not kept twice."""
    return Compiled(revision=accepted.revision, digest=accepted.digest, report=found)


def _identity(stored: Stored) -> tuple[object, ...]:
    return (stored.subject, stored.generation, stored.created_at, stored.spec)


def _misses_a_binding(found: Report) -> bool:
    return any(v.reason is Reason.UNKNOWN_BINDING for v in found.violations)

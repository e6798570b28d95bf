"""Judges policies, and remembers what it judged for as long as its inputs stay. PURE.

A pass looks at every policy, but most have not changed since the last: reading ten configs of 64 KiB takes a tenth of
a second, which one tenant could cost everybody at each pass. So a change costs what the policies cost that it
concerns, and the others a glance. One judge a reconciler.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from supervisor_middleware.compiler.binding import Bindings, Bound
from supervisor_middleware.compiler.checks import PolicyInput
from supervisor_middleware.compiler.drafts import PolicyDraft, draft_policy
from supervisor_middleware.compiler.pipeline import CompiledPolicy, compile_draft
from supervisor_middleware.compiler.questions import Question, questions
from supervisor_middleware.control.acceptances import Acceptances
from supervisor_middleware.control.registrations import Registry
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.model.snapshot import Stored, StoredRevision
from supervisor_middleware.model.verdict import Verdict, VerdictKey
from supervisor_middleware.model.violation import Reason, Report, Violation
from supervisor_middleware.registry.catalog import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A policy as it was read."""

    stored: Stored
    draft: PolicyDraft
    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDecision:
    """One policy. `compiled` None: an answer it needs is still under way; `accepted` is what is in force until then.

    `questions` are those whose answer the accepted revision does not hold already.
    """

    stored: Stored
    questions: tuple[Question, ...]
    compiled: CompiledPolicy | None
    accepted: StoredRevision | None
    fallback: Revision | None
    """What sandboxes run of a policy that was never accepted."""

    @property
    def fresh(self) -> Revision | None:
        """A revision to be committed: valid, and not what is accepted already."""
        if self.compiled is None or (self.accepted is not None and self.accepted.digest == self.compiled.digest):
            return None
        return self.compiled.revision


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What policies are judged in, computed once a pass; `version` is the catalog's."""

    bindings: Bindings
    pending: tuple[str, ...]
    is_incomplete: bool
    version: int

    def is_same(self, other: "Around") -> bool:
        """Whether nothing can have changed."""
        return self.bindings is other.bindings and (self.pending, self.is_incomplete, self.version) == (
            other.pending,
            other.is_incomplete,
            other.version,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """Everything a compilation depends on besides the settings, which are fixed for a run.

    `bound` is who serves each entry; what else there is (`hints`) counts only where somebody is missing.
    """

    read: Read
    bound: tuple[Bound | None, ...]
    hints: tuple[Bindings, tuple[str, ...]] | None
    accepted: Revision | None
    answers: tuple[Verdict | None, ...]

    def is_same(self, other: "_Inputs") -> bool:
        """Whether the outcome must be the same. By identity where equality would cost what is to be saved."""
        return (
            self.read is other.read
            and self.accepted is other.accepted
            and (self.bound, self.answers, self.hints) == (other.bound, other.answers, other.hints)
        )


@dataclass(slots=True)
class Judge:
    """What was read, compiled and decided, by the policy's UID. `compilations` counts."""

    settings: CompilerSettings
    compilations: int = 0
    acceptances: Acceptances = field(default_factory=Acceptances)
    _read: dict[str, Read] = field(default_factory=dict)
    _compiled: dict[str, tuple[_Inputs, CompiledPolicy]] = field(default_factory=dict)
    _decided: dict[str, tuple[Around, PolicyDecision]] = field(default_factory=dict)
    _fallbacks: dict[str, tuple[Read, Revision | None]] = field(default_factory=dict)
    _bindings: Bindings | None = None

    def knows(self, stored: Stored) -> bool:
        """Whether the policy was read as it is."""
        known = self._read.get(stored.uid)
        return known is not None and (known.stored is stored or _identity(known.stored) == _identity(stored))

    def read(self, stored: Stored) -> Read:
        """The policy, read once a spec."""
        if self.knows(stored):
            return self._read[stored.uid]
        draft, violations = draft_policy(stored)
        read = Read(stored=stored, draft=draft, violations=tuple(violations))
        self._read[stored.uid] = read
        return read

    def around(self, registry: Registry, catalog: Catalog) -> Around:
        """What a pass judges in; the bindings are the object of the last pass if nothing changed."""
        if self._bindings is None or self._bindings != registry.bindings:
            self._bindings = registry.bindings
        return Around(
            bindings=self._bindings,
            pending=registry.pending,
            is_incomplete=registry.is_incomplete,
            version=catalog.version,
        )

    def decide(
        self, stored: Stored, catalog: Catalog, *, around: Around, accepted: StoredRevision | None
    ) -> PolicyDecision:
        """Judge one policy, unless nothing that it could depend on has changed."""
        known = self._decided.get(stored.uid)
        if (
            known is not None
            and known[1].stored is stored
            and known[1].accepted is accepted
            and known[0].is_same(around)
        ):
            return known[1]
        decision = self._decide(stored, catalog, around=around, accepted=accepted)
        self._decided[stored.uid] = (around, decision)
        return decision

    def keep(self, uids: frozenset[str]) -> None:
        """Forget policies that are gone."""
        for uid in self._read.keys() - uids:
            del self._read[uid]
            self._compiled.pop(uid, None)
            self._decided.pop(uid, None)
            self._fallbacks.pop(uid, None)

    def _decide(
        self, stored: Stored, catalog: Catalog, *, around: Around, accepted: StoredRevision | None
    ) -> PolicyDecision:
        read = self.read(stored)
        standing = None if accepted is None else accepted.revision
        asked = questions(read.draft, around.bindings, accepted=standing)
        compiled = None
        if not any(catalog.is_unasked(q.key) for q in asked):
            compiled = self._compile(read, catalog.verdicts, around=around, accepted=standing)
        if compiled is not None and around.is_incomplete and _misses_a_binding(compiled.report):
            compiled = None
        fallback = self._fallback(read) if accepted is None else None
        if fallback is None:
            self._fallbacks.pop(stored.uid, None)
        return PolicyDecision(stored=stored, questions=asked, compiled=compiled, accepted=accepted, fallback=fallback)

    def _fallback(self, read: Read) -> Revision | None:
        """Made once a spec, and kept for those only that need it."""
        known = self._fallbacks.get(read.stored.uid)
        if known is None or known[0] is not read:
            known = self._fallbacks[read.stored.uid] = (read, read.draft.as_unresolved())
        return known[1]

    def _compile(
        self, read: Read, verdicts: Mapping[VerdictKey, Verdict], *, around: Around, accepted: Revision | None
    ) -> CompiledPolicy:
        bound = tuple(around.bindings.find(e.middleware or "") for e in read.draft.entries)
        inputs = _Inputs(
            read=read,
            bound=bound,
            hints=(around.bindings, around.pending) if None in bound else None,
            accepted=accepted,
            answers=tuple(verdicts.get(q.key) for q in questions(read.draft, around.bindings)),
        )
        known = self._compiled.get(read.stored.uid)
        if known is not None and inputs.is_same(known[0]):
            return known[1]
        given = PolicyInput(
            draft=read.draft,
            bindings=around.bindings,
            verdicts=verdicts,
            settings=self.settings,
            accepted=accepted,
            pending=around.pending,
        )
        compiled = compile_draft(given, read.violations)
        self.compilations += 1
        self._compiled[read.stored.uid] = (inputs, compiled)
        return compiled


def _identity(stored: Stored) -> tuple[object, ...]:
    return (stored.subject, stored.generation, stored.created_at, stored.spec)


def _misses_a_binding(found: Report) -> bool:
    return any(v.reason is Reason.UNKNOWN_BINDING for v in found.violations)

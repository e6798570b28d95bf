"""Judges policies, and remembers what it judged for as long as its inputs stay. PURE.

A pass looks at every policy, but most have not changed since the last: reading ten configs of 64 KiB takes a tenth of
a second, which one tenant could cost everybody at each pass. One judge a reconciler.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from supervisor_middleware.compiler.binding import Bindings
from supervisor_middleware.compiler.checks import PolicyInput
from supervisor_middleware.compiler.drafts import PolicyDraft, draft_policy
from supervisor_middleware.compiler.pipeline import CompiledPolicy, compile_draft
from supervisor_middleware.compiler.questions import Question, questions
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.model.snapshot import Stored
from supervisor_middleware.model.verdict import Verdict, VerdictKey
from supervisor_middleware.model.violation import Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A policy as it was read; `fallback` is what sandboxes run of one that was never accepted."""

    stored: Stored
    draft: PolicyDraft
    violations: tuple[Violation, ...]
    fallback: Revision | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Everything a compilation depends on besides the settings, which are fixed for a run."""

    read: Read
    bindings: Bindings
    accepted: Revision | None
    pending: tuple[str, ...]
    answers: tuple[Verdict | None, ...]

    def is_same(self, other: "Inputs | None") -> bool:
        """Whether the outcome must be the same. By identity where equality would cost what is to be saved."""
        return (
            other is not None
            and self.read is other.read
            and self.bindings is other.bindings
            and self.accepted is other.accepted
            and (self.pending, self.answers) == (other.pending, other.answers)
        )


@dataclass(slots=True)
class Judge:
    """What was read and compiled, by the policy's UID."""

    settings: CompilerSettings
    _read: dict[str, Read] = field(default_factory=dict)
    _compiled: dict[str, tuple[Inputs, CompiledPolicy]] = field(default_factory=dict)
    _bindings: Bindings | None = None

    def knows(self, stored: Stored) -> bool:
        """Whether the policy was read as it is."""
        known = self._read.get(stored.uid)
        return known is not None and _identity(known.stored) == _identity(stored)

    def read(self, stored: Stored) -> Read:
        """The policy, read once a spec."""
        if self.knows(stored):
            return self._read[stored.uid]
        draft, violations = draft_policy(stored)
        read = Read(stored=stored, draft=draft, violations=tuple(violations), fallback=draft.as_unresolved())
        self._read[stored.uid] = read
        return read

    def same(self, bindings: Bindings) -> Bindings:
        """`bindings`, as the object of the last pass if nothing changed."""
        if self._bindings is None or self._bindings != bindings:
            self._bindings = bindings
        return self._bindings

    def compile(
        self,
        read: Read,
        *,
        bindings: Bindings,
        verdicts: Mapping[VerdictKey, Verdict],
        accepted: Revision | None,
        pending: tuple[str, ...],
    ) -> CompiledPolicy:
        """Compile, unless nothing it depends on has changed."""
        asked: tuple[Question, ...] = questions(read.draft, bindings)
        inputs = Inputs(
            read=read,
            bindings=bindings,
            accepted=accepted,
            pending=pending,
            answers=tuple(verdicts.get(q.key) for q in asked),
        )
        known = self._compiled.get(read.stored.uid)
        if known is not None and inputs.is_same(known[0]):
            return known[1]
        given = PolicyInput(
            draft=read.draft,
            bindings=bindings,
            verdicts=verdicts,
            settings=self.settings,
            accepted=accepted,
            pending=pending,
        )
        compiled = compile_draft(given, read.violations)
        self._compiled[read.stored.uid] = (inputs, compiled)
        return compiled

    def keep(self, uids: frozenset[str]) -> None:
        """Forget policies that are gone."""
        self._read = {u: r for u, r in self._read.items() if u in uids}
        self._compiled = {u: c for u, c in self._compiled.items() if u in uids}


def _identity(stored: Stored) -> tuple[object, ...]:
    return (stored.subject, stored.generation, stored.created_at, stored.spec)

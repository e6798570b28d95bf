"""What a policy needs to ask its services. PURE: the gatherers ask, the checks read the answers.

RFC 0009 "Registration and delivery": policy creation and update call the owning service's ValidateConfig.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from supervisor_middleware.compiler.binding import Bindings, Bound
from supervisor_middleware.compiler.drafts import EntryDraft, PolicyDraft
from supervisor_middleware.model.canonical import JsonObject, canonical, digest
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.verdict import VerdictKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One ValidateConfig call that would decide one entry."""

    key: VerdictKey
    bound: Bound
    config: JsonObject = field(repr=False)

    @property
    def digest(self) -> str:
        """The key in one word, as revisions keep it."""
        return verdict_digest(self.key)

    @property
    def service(self) -> str:
        """Who is asked, for people."""
        registration = self.bound.registration
        return f"built-in {self.key.binding}" if registration is None else f"service {registration.name}"


def questions(draft: PolicyDraft, bindings: Bindings, *, accepted: Revision | None = None) -> tuple[Question, ...]:
    """Every question of a policy that can be asked: known binding, encodable config; equal ones once.

    Not those whose answer `accepted`, the policy's last-known-good, holds already.
    """
    held = frozenset[str]() if accepted is None else accepted.verdicts
    return tuple({q.key: q for q in _each(draft, bindings) if not held or q.digest not in held}.values())


def question_for(entry: EntryDraft, bound: Bound | None) -> Question | None:
    """The question of one entry, or None if there is nobody or nothing to ask."""
    config_digest = entry.askable_digest
    if bound is None or entry.config is None or config_digest is None:
        return None
    return Question(key=key_for(bound, config_digest), bound=bound, config=entry.config)


def key_for(bound: Bound, config_digest: str) -> VerdictKey:
    """What an answer about a config of this digest is kept under."""
    return VerdictKey(
        endpoint=bound.endpoint,
        manifest_digest=bound.manifest_digest,
        binding=bound.binding.id,
        config_digest=config_digest,
    )


def verdict_digest(key: VerdictKey) -> str:
    """A verdict's key in one word."""
    return digest(canonical([key.endpoint, key.manifest_digest, key.binding, key.config_digest]))


def _each(draft: PolicyDraft, bindings: Bindings) -> Iterator[Question]:
    for entry in draft.entries:
        if entry.middleware is not None:
            question = question_for(entry, bindings.find(entry.middleware))
            if question is not None:
                yield question

"""What is taken for granted offline: a binding whose manifest is not at hand is served all the same. PURE.

Without it a policy could not be tried before its service is recorded: its stages could not run, which is what a
cluster would make of a service that is gone, not what the author asks about.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from supervisor_middleware.cli.offline.world import World
from supervisor_middleware.compiler.registration import RegistrationDraft, draft_registration
from supervisor_middleware.model.generation import Generation, Stage
from supervisor_middleware.model.identifiers import is_reserved
from supervisor_middleware.model.limits import MAX_BODY_BYTES, TIMEOUT_DEFAULT
from supervisor_middleware.model.revision import Unresolved
from supervisor_middleware.model.settings import Knowledge

UNKNOWN_SERVICE = "?"
"""The service of an assumed stage where several could be meant, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """The services that may serve a binding nobody could look up; None: nothing is assumed, they were asked."""

    pending: tuple[RegistrationDraft, ...] | None = None

    def applied(self, generation: Generation) -> Generation:
        """`generation` with the stages whose bindings nobody could look up, as far as they would run."""
        if self.pending is None or not any(map(is_unknown, generation.stages)):
            return generation
        return replace(generation, stages=tuple(self._stage(s) if is_unknown(s) else s for s in generation.stages))

    def _stage(self, stage: Stage) -> Stage:
        draft = self._serving(stage.binding)
        limit = draft.max_body_bytes if draft is not None else MAX_BODY_BYTES
        timeout = draft.connection.timeout if draft is not None and draft.connection is not None else TIMEOUT_DEFAULT
        service = UNKNOWN_SERVICE if draft is None else draft.name
        return replace(stage, unresolved=None, service=service, max_body_bytes=limit, timeout=timeout)

    def _serving(self, binding: str) -> RegistrationDraft | None:
        """The one registration that can be meant."""
        pending = [d for d in self.pending or () if d.connection is not None]
        found = [d for d in pending if binding in d.declared_bindings] or [
            d for d in pending if not d.declared_bindings
        ]
        return found[0] if len(found) == 1 else None


def assumptions_of(world: World) -> Assumptions:
    """What is assumed in `world`."""
    if world.settings.knowledge is Knowledge.LIVE:
        return Assumptions()
    snapshot = world.snapshot
    drafts = (
        draft_registration(s, bundles=snapshot.bundles, settings=world.settings)[0] for s in snapshot.registrations
    )
    return Assumptions(pending=tuple(d for d in drafts if d.name in world.registry.pending))


def is_unknown(stage: Stage) -> bool:
    """Whether `stage` cannot run for want of a manifest only."""
    return stage.unresolved is Unresolved.REGISTRATION_MISSING and not is_reserved(stage.binding)


def unknown_bindings(generations: Iterable[Generation]) -> tuple[str, ...]:
    """The bindings that have to be assumed."""
    return tuple(sorted({s.binding for g in generations for s in g.stages if is_unknown(s)}))

"""The contract's limits on what a service says: its manifest and its results. PURE, reports everything.

RFC 0009 "The middleware contract": every limit is public and an answer over one is no answer. The SDK judges before
sending, so that an author reads which limit it was instead of a supervisor's failed stage.
"""

from collections.abc import Iterator

from supervisor_middleware.compiler.manifest_checks import form_problems
from supervisor_middleware.model.evaluation import FailureCode, Result
from supervisor_middleware.model.limits import MAX_BINDINGS, MAX_BODY_BYTES
from supervisor_middleware.model.manifest import Manifest
from supervisor_middleware.model.violation import Reason
from supervisor_middleware.wire.result_limits import answer_breaches, mutation_breaches


def manifest_problems(manifest: Manifest, *, tolerated: frozenset[Reason] = frozenset()) -> Iterator[str]:
    """What keeps a registration from being accepted with `manifest`, whatever the registration says.

    The compiler's rulebook decides, so that a service and the operator cannot differ. Built-ins, which nobody
    registers, are judged with `RESERVED_NAMESPACE` tolerated.
    """
    if not 1 <= len(manifest.bindings) <= MAX_BINDINGS:
        yield f"1 to {MAX_BINDINGS} bindings are needed, {len(manifest.bindings)} are there"
    yield from (message for _, reason, message, _ in form_problems(manifest) if reason not in tolerated)


def result_problems(result: Result, *, max_body_bytes: int) -> Iterator[FailureCode]:
    """Every limit that `result` breaks, once each, in the platform's own words: nothing of the content."""
    limit = min(max_body_bytes, MAX_BODY_BYTES)
    # Which headers no stage may change depends on the request's Connection header: the supervisor judges that.
    yield from dict.fromkeys((*answer_breaches(result, max_body_bytes=limit), *mutation_breaches(result.mutations)))

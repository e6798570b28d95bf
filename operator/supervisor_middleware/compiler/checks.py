"""The rulebook for policies. PURE: one function a rule, named by what holds when it passes; `CHECKS` is the list.

A check yields violations and never raises, so one that fails does not hide the others. Structure (types, unknown
fields, enums, patterns, timeouts) is checked by `structure` and the models.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final, TypeAlias, assert_never

from supervisor_middleware.compiler.binding import Bindings, Bound
from supervisor_middleware.compiler.drafts import EntryDraft, PolicyDraft
from supervisor_middleware.compiler.questions import question_for
from supervisor_middleware.compiler.skipped import Overlaps, for_example, selector_of
from supervisor_middleware.model.identifiers import KEY_RULE, is_policy_key, is_reserved, plain_text
from supervisor_middleware.model.limits import (
    MAX_BASELINE_CONFIGS,
    MAX_CONFIG_BYTES,
    MAX_CONFIG_DEPTH,
    MAX_CONFIGS,
    MAX_PATTERNS,
    MAX_SKIPS,
)
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.settings import CompilerSettings, Knowledge
from supervisor_middleware.model.verdict import Accepted, Outage, Rejected, Unreachable, Verdict, VerdictKey
from supervisor_middleware.model.violation import Reason, Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInput:
    """The whole world a policy is judged in. `pending` are registrations that are not accepted (yet)."""

    draft: PolicyDraft
    bindings: Bindings
    verdicts: Mapping[VerdictKey, Verdict]
    settings: CompilerSettings
    accepted: Revision | None = None
    pending: tuple[str, ...] = ()

    def violation(self, path: str, reason: Reason, *, message: str, hint: str = "", detail: str = "") -> Violation:
        """A violation about this policy."""
        return Violation(
            subject=self.draft.subject, path=path, reason=reason, message=message, hint=hint, detail=detail
        )


Check: TypeAlias = Callable[[PolicyInput], Iterator[Violation]]
_NOT_ASKED: Final = Unreachable(Outage.CALL_FAILED)
_MAX_SHOWN_KEY: Final = 64


def keys_are_names(given: PolicyInput) -> Iterator[Violation]:
    """Every key of networkMiddlewares can be an identity."""
    for entry in given.draft.entries:
        if not is_policy_key(entry.key):
            yield given.violation(
                entry.path(),
                Reason.MALFORMED,
                message=f"the key must be {KEY_RULE}",
                hint="rename the key; the field name may hold any text for people",
            )


def configs_are_few(given: PolicyInput) -> Iterator[Violation]:
    """RFC 0009 "Policy integration": at most 10 middleware configs; of a baseline 5, the rest is the tenants'."""
    found = len(given.draft.entries)
    limit, scope = (MAX_BASELINE_CONFIGS, "namespaces") if given.draft.is_baseline else (MAX_CONFIGS, "sandboxes")
    if found > limit:
        yield given.violation(
            "spec.networkMiddlewares",
            Reason.TOO_MANY,
            message=f"must have at most {limit} items, has {found}",
            hint=f"merge configs of one middleware, or split the policy by {scope}",
        )


def patterns_are_few(given: PolicyInput) -> Iterator[Violation]:
    """RFC 0009 "Policy integration": at most 32 include and exclude patterns together."""
    for entry in given.draft.entries:
        found = len(entry.include or ()) + len(entry.exclude)
        if found > MAX_PATTERNS:
            yield given.violation(
                entry.path("endpoints"),
                Reason.TOO_MANY,
                message=f"include and exclude hold at most {MAX_PATTERNS} patterns together, these hold {found}",
                hint="use a wildcard or split the config",
            )


def skipped_hosts_are_few(given: PolicyInput) -> Iterator[Violation]:
    """Each is compared with each selector, also of other policies."""
    found = len(given.draft.skips)
    if found > MAX_SKIPS:
        yield given.violation(
            "spec.networkPolicies",
            Reason.TOO_MANY,
            message=f"at most {MAX_SKIPS} endpoints may have tls: skip, these are {found}",
            hint="name several hosts by one pattern",
        )


def selectors_avoid_skipped_hosts(given: PolicyInput) -> Iterator[Violation]:
    """RFC 0009 "Policy integration": a selector that overlaps a `tls: skip` endpoint is rejected."""
    overlaps = Overlaps()
    for entry in given.draft.entries:
        if entry.include is None:
            continue
        selector = selector_of(entry.include, entry.exclude)
        for skip, host in overlaps.hits(selector, given.draft.skips[:MAX_SKIPS]):
            yield given.violation(
                entry.path("endpoints"),
                Reason.SELECTS_SKIPPED_HOST,
                message=f"selects a host of {skip.path}, which has tls: skip, so nobody looks inside"
                f"{for_example(host)}",
                hint="add the host to exclude, or remove tls: skip there",
            )


def orders_are_unique(given: PolicyInput) -> Iterator[Violation]:
    """RFC 0009 "Middleware ordering": unique over the complete policy, even where selectors never overlap."""
    holders: dict[int, list[EntryDraft]] = {}
    for entry in given.draft.entries:
        if entry.order is not None:
            holders.setdefault(entry.order, []).append(entry)
    free = next(n for n in count(10, 10) if n not in holders)
    for order, entries in holders.items():
        keys = ", ".join(plain_text(key, limit=_MAX_SHOWN_KEY) for key in sorted(e.key for e in entries))
        for entry in entries if len(entries) > 1 else ():
            yield given.violation(
                entry.path("order"),
                Reason.DUPLICATE_ORDER,
                message=f"order {order} is used by {keys}; it must be unique in the policy (0 if absent)",
                hint=f"give each its own order, for example {free}",
            )


def configs_fit_the_wire(given: PolicyInput) -> Iterator[Violation]:
    """RFC 0009 "The middleware contract": 64 KiB of encoded config; numbers a double holds exactly."""
    for entry in given.draft.entries:
        if entry.config is None:
            continue
        if entry.measure.depth > MAX_CONFIG_DEPTH:
            yield given.violation(
                entry.path("config"),
                Reason.TOO_LARGE,
                message=f"nests deeper than {MAX_CONFIG_DEPTH} levels",
                hint="flatten it, or hand the service one string of JSON",
            )
            continue
        if entry.measure.digest is None:
            yield given.violation(
                entry.path("config"),
                Reason.MALFORMED,
                message="holds a number that a double cannot hold exactly, or text that is not Unicode",
                hint="write large numbers as strings",
            )
            continue
        if entry.measure.size > MAX_CONFIG_BYTES:
            yield given.violation(
                entry.path("config"),
                Reason.TOO_LARGE,
                message=f"is {entry.measure.size} bytes encoded, the limit is {MAX_CONFIG_BYTES}",
                hint="keep large data in the service",
            )


def bindings_exist(given: PolicyInput) -> Iterator[Violation]:
    """RFC 0009 "Contract versioning": a policy that asks for an unsupported binding is rejected."""
    for entry, bound in _selections(given):
        if bound is None and not _is_unknowable(given, entry):
            yield _unknown_binding(given, entry)


def configs_are_accepted(given: PolicyInput) -> Iterator[Violation]:
    """RFC 0009 "Registration and delivery": the owning service's ValidateConfig has said yes."""
    for entry, bound in _selections(given):
        question = question_for(entry, bound)
        if question is None or (question.bound.registration and given.settings.knowledge is Knowledge.OFFLINE):
            continue
        match given.verdicts.get(question.key, _NOT_ASKED):
            case Accepted():
                continue
            case Rejected(reason):
                yield given.violation(
                    entry.path("config"),
                    Reason.CONFIG_REJECTED,
                    message=f"{question.service} does not accept this config for {question.key.binding}",
                    hint="see the documentation of the middleware",
                    detail=reason,
                )
            case Unreachable(outage):
                # An outage takes nothing from anybody.
                if given.accepted is None or question.digest not in given.accepted.verdicts:
                    yield _unreachable(given, entry, service=question.service, outage=outage)
            case verdict:
                assert_never(verdict)


CHECKS: Final[tuple[Check, ...]] = (
    configs_are_few,
    keys_are_names,
    patterns_are_few,
    skipped_hosts_are_few,
    selectors_avoid_skipped_hosts,
    orders_are_unique,
    configs_fit_the_wire,
    bindings_exist,
    configs_are_accepted,
)


def _selections(given: PolicyInput) -> Iterator[tuple[EntryDraft, Bound | None]]:
    for entry in given.draft.entries:
        if entry.middleware is not None:
            yield entry, given.bindings.find(entry.middleware)


def _is_unknowable(given: PolicyInput, entry: EntryDraft) -> bool:
    """Offline without its manifest, an external binding may well exist: that is a warning."""
    return given.settings.knowledge is Knowledge.OFFLINE and not is_reserved(entry.middleware or "")


def _unknown_binding(given: PolicyInput, entry: EntryDraft) -> Violation:
    close = given.bindings.close_to(entry.middleware or "")
    if is_reserved(entry.middleware or ""):
        builtins = ", ".join(sorted(b.id for b in given.settings.builtins)) or "none"
        message, hint = f"is no built-in; built-ins: {builtins}", "the openshell/ namespace holds built-ins only"
    elif close:
        message, hint = "no accepted registration serves this binding", f"did you mean {' or '.join(close)}?"
    elif given.pending:
        message = "no accepted registration serves this binding"
        hint = f"not accepted yet: {', '.join(given.pending[:5])}; see its status, and try again when it is Ready"
    else:
        message = "no accepted registration serves this binding"
        hint = "register the service first (kind SupervisorMiddleware), or check the ID with smw describe ENDPOINT"
    return given.violation(entry.path("middleware"), Reason.UNKNOWN_BINDING, message=message, hint=hint)


def _unreachable(given: PolicyInput, entry: EntryDraft, *, service: str, outage: Outage) -> Violation:
    return given.violation(
        entry.path("config"),
        Reason.SERVICE_UNREACHABLE,
        message=f"{service} could not be asked about this config: {outage}",
        hint="this may pass: try again when the service is back",
    )

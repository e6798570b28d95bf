"""The rulebook of warnings for policies. PURE: one function a rule, named by what it looks for; `ADVICE` is the list.

Advice is worth knowing and never wrong: it reaches kubectl as admission warnings, and `smw validate`; no status, and
it refuses nothing. An API server cuts a warning at 256 characters, so the point comes first.
"""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import combinations
from typing import Final, TypeAlias

from supervisor_middleware.compiler.binding import Bound
from supervisor_middleware.compiler.checks import PolicyInput
from supervisor_middleware.compiler.credentials import credentials_in
from supervisor_middleware.compiler.drafts import EntryDraft
from supervisor_middleware.compiler.endpoints import ANY_HOST, EndpointDraft
from supervisor_middleware.compiler.witnesses import Selection, Witnesses, select, selection_of
from supervisor_middleware.model.durations import format_duration
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.host_sets import TooComplex
from supervisor_middleware.model.hosts import HostSelector
from supervisor_middleware.model.identifiers import is_reserved
from supervisor_middleware.model.limits import CHAIN_TIMEOUT, KIB, MAX_CONFIGS
from supervisor_middleware.model.settings import Knowledge
from supervisor_middleware.model.violation import Advice

Rule: TypeAlias = Callable[[PolicyInput], Iterator[Advice]]

_REMOVES_CONTENT: Final = re.compile(
    r"redact|anonym|mask|scrub|saniti[sz]|privacy|secret|regex|(?<![a-z])(?:pii|dlp|phi)(?![a-z])"
)
_BODY_PROTOCOLS: Final = frozenset({"graphql", "jsonrpc", "mcp"})
_MAX_AUDITED: Final = 64
_MAX_PATH: Final = 120
# kubectl keeps the whole object in an annotation, of which there may be 256 KiB; some of it is not counted here.
_MAX_APPLIED_BYTES: Final = 240 * KIB


def unknown_bindings(given: PolicyInput) -> Iterator[Advice]:
    """Offline, a binding of a service whose manifest is not at hand."""
    for entry in given.draft.entries:
        if (
            given.settings.knowledge is Knowledge.OFFLINE
            and entry.middleware is not None
            and not is_reserved(entry.middleware)
            and given.bindings.find(entry.middleware) is None
        ):
            message = "not checked: no manifest is known here that has this binding (use --manifests or --live)"
            yield _advice(given, entry.path("middleware"), message)


def redactors_that_fail_open(given: PolicyInput) -> Iterator[Advice]:
    """Middleware that takes something out, by its names, and whose failure lets everything pass."""
    for entry in given.draft.entries:
        if entry.on_error is OnError.FAIL_OPEN and _removes_content(entry):
            message = (
                f"when {entry.middleware} fails, requests pass with all that it would have removed; FailClosed "
                "refuses them"
            )
            yield _advice(given, entry.path("onError"), message)


def selectors_without_hosts(given: PolicyInput) -> Iterator[Advice]:
    """A config that no request can ever meet."""
    witnesses = Witnesses()
    for entry, selection in _selections(given):
        if entry.exclude and not _has_hosts(witnesses, selection):
            message = "selects no host: exclude covers all of include, so this config never runs"
            yield _advice(given, entry.path("endpoints"), message)


def limits_below_others(given: PolicyInput) -> Iterator[Advice]:
    """A stage that refuses what a stage of the same hosts takes."""
    witnesses = Witnesses()
    stages = _bound(given)
    for entry, mine, bound in stages:
        if entry.on_error is not OnError.FAIL_CLOSED:
            continue
        larger = [s for s in stages if s[2].max_body_bytes > bound.max_body_bytes]
        for other, theirs, above in sorted(larger, key=lambda s: (-s[2].max_body_bytes, s[0].key)):
            host = _shared(witnesses, mine, theirs)
            if host is not None:
                message = (
                    f"takes bodies up to {bound.max_body_bytes} bytes and {other.key} up to {above.max_body_bytes}: "
                    f"for {host} and hosts like it, {entry.key} refuses every body above its own limit"
                )
                yield _advice(given, entry.path("middleware"), message)
                break


def slow_chains(given: PolicyInput) -> Iterator[Advice]:
    """A host whose chain may take longer than the operator wants any to.

    A lower bound of the worst host: hosts of one config or of two are looked at. A host that no two configs name as
    theirs, but three or more select, is found only if it is an example of theirs.
    """
    budget = given.settings.latency_budget
    stages = _bound(given)
    if sum((b.timeout for _, _, b in stages), timedelta()) <= budget:
        return
    witnesses = Witnesses()
    alone = (_shared(witnesses, selection) for _, selection, _ in stages)
    pairs = (_shared(witnesses, a[1], b[1]) for a, b in combinations(stages, 2))
    hosts = sorted({host for host in (*alone, *pairs) if host is not None})
    worst = max(((_duration(stages, host), host) for host in hosts), key=lambda w: w[0], default=(timedelta(), ""))
    if worst[0] > budget:
        running = sum(s[1].selector.selects(worst[1]) for s in stages)
        message = (
            f"a request to {worst[1]} may wait {format_duration(worst[0])} for {running} stages, longer than the "
            f"{format_duration(budget)} that are set as the budget; shorten timeouts or run fewer stages"
        )
        yield _advice(given, "spec.networkMiddlewares", message)


def audits_that_end_chains(given: PolicyInput) -> Iterator[Advice]:
    """An endpoint whose audited denial skips the `FailClosed` stages that would have come.

    RFC 0009 "Operation phases and placement": after a stage has changed a body its endpoint's rules are asked again;
    in audit mode a denial ends the chain and the request goes on.
    """
    witnesses = Witnesses()
    audited = sorted((e for e in given.draft.endpoints if _is_body_aware(e)), key=lambda e: e.path)
    found = [(e, key) for e in audited[:_MAX_AUDITED] if (key := _skipped_stage(given, e, witnesses)) is not None]
    if found:
        more = f" (and for {len(found) - 1} more endpoints)" if len(found) > 1 else ""
        message = (
            f"a denial that is only audited ends the chain: the request goes on without {found[0][1]}, although it "
            f"is FailClosed{more}; use enforcement: enforce"
        )
        yield _advice(given, f"{found[0][0].path}.enforcement", message)


def credentials_in_configs(given: PolicyInput) -> Iterator[Advice]:
    """A config in which a credential seems to stand; its place is said and nothing of it."""
    for entry in given.draft.entries:
        if entry.config and entry.measure.is_askable and (places := credentials_in(entry.config)):
            more = f" ({len(places)} of them)" if len(places) > 1 else ""
            message = f"looks like a credential{more}; whoever reads the policy sees it: keep it in the service"
            yield _advice(given, _short_path(entry, places[0]), message)


def large_policies(given: PolicyInput) -> Iterator[Advice]:
    """A policy too large for the annotation that `kubectl apply` keeps."""
    size = sum(_written_size(e) for e in given.draft.entries)
    size += sum(len(e.path) + len(str(e.host)) for e in given.draft.endpoints)
    if size > _MAX_APPLIED_BYTES:
        message = f"is about {size // KIB} KiB: kubectl apply keeps at most 256 KiB; use kubectl apply --server-side"
        yield _advice(given, "spec", message)


ADVICE: Final[tuple[Rule, ...]] = (
    unknown_bindings,
    redactors_that_fail_open,
    selectors_without_hosts,
    limits_below_others,
    slow_chains,
    audits_that_end_chains,
    credentials_in_configs,
    large_policies,
)

_Stage: TypeAlias = tuple[EntryDraft, Selection, Bound]


def _advice(given: PolicyInput, path: str, message: str) -> Advice:
    return Advice(subject=given.draft.subject, path=path, message=message)


def _removes_content(entry: EntryDraft) -> bool:
    return _REMOVES_CONTENT.search(f"{entry.middleware or ''} {entry.key} {entry.label}".lower()) is not None


def _selections(given: PolicyInput) -> Iterator[tuple[EntryDraft, Selection]]:
    # More configs are refused anyway, and every pair of them is looked at.
    for entry in sorted(given.draft.entries, key=lambda e: e.key)[:MAX_CONFIGS]:
        if entry.include is not None:
            yield entry, selection_of(entry.include, entry.exclude)


def _bound(given: PolicyInput) -> list[_Stage]:
    """Configs with what is known of their middleware."""
    found = ((e, s, given.bindings.find(e.middleware or "")) for e, s in _selections(given))
    return [(entry, selection, bound) for entry, selection, bound in found if bound is not None]


def _duration(stages: list[_Stage], host: str) -> timedelta:
    total = sum((bound.timeout for _, selection, bound in stages if selection.selector.selects(host)), timedelta())
    return min(total, CHAIN_TIMEOUT)


def _shared(witnesses: Witnesses, *selections: Selection) -> str | None:
    """A host of all of them; None also where nobody knows: a warning must be right."""
    try:
        return witnesses.shared(*selections)
    except TooComplex:
        return None


def _has_hosts(witnesses: Witnesses, selection: Selection) -> bool:
    """Whether it selects anything; also where nobody knows."""
    try:
        return witnesses.shared(selection) is not None
    except TooComplex:
        return True


def _is_body_aware(endpoint: EndpointDraft) -> bool:
    protocol = endpoint.protocol.lower().replace("-", "").replace("_", "")
    return endpoint.is_audited and endpoint.host is not None and protocol in _BODY_PROTOCOLS


def _skipped_stage(given: PolicyInput, endpoint: EndpointDraft, witnesses: Witnesses) -> str | None:
    """A `FailClosed` config that runs after another one for a host of the endpoint."""
    hosts = select(HostSelector(include=(endpoint.host or ANY_HOST,)))
    ordered = sorted(_selections(given), key=lambda s: (s[0].order or 0, s[0].key))
    for (_, earlier), (entry, later) in combinations(ordered, 2):
        if entry.on_error is OnError.FAIL_CLOSED and _shared(witnesses, hosts, earlier, later) is not None:
            return entry.key
    return None


def _short_path(entry: EntryDraft, place: tuple[str | int, ...]) -> str:
    """The path, or as much of it as a warning has room for."""
    kept = len(place)
    while kept and len(entry.path("config", *place[:kept])) > _MAX_PATH:
        kept -= 1
    return entry.path("config", *place[:kept])


def _written_size(entry: EntryDraft) -> int:
    patterns = (*(entry.include or ()), *entry.exclude)
    return entry.measure.size + sum(len(p) + len('"",') for p in patterns)

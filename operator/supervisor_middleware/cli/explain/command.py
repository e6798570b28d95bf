"""`smw explain HOST`: what happens to a request to a host, in each sandbox, and why.

Exit codes: 0, 1 the policies are not valid (what would run is shown all the same), 2 it could not be told: among
others, what is asked about is no host.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TextIO

from supervisor_middleware.cli.explain import render as shown
from supervisor_middleware.cli.explain.render import Explained, Explanation, Place, Seen, Source
from supervisor_middleware.cli.offline.complaints import complain
from supervisor_middleware.cli.offline.scopes import Scope, chosen_scopes
from supervisor_middleware.cli.offline.world import Options as Offline
from supervisor_middleware.cli.offline.world import World, gathered
from supervisor_middleware.cli.options import Output
from supervisor_middleware.compiler.endpoints import EndpointDraft
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.generation import Stage
from supervisor_middleware.model.hosts import HostPattern, normalize_host
from supervisor_middleware.model.limits import CHAIN_TIMEOUT
from supervisor_middleware.model.snapshot import Stored
from supervisor_middleware.model.violation import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is explained; `sandbox` names one, or a namespace."""

    host: str
    world: Offline
    sandbox: str = ""
    output: Output = Output.TABLE


class _Asked(StrEnum):
    PATTERN = "is a pattern; name one host that it matches, such as api.example.com"
    URL = "is a URL; name its host only"


def run(options: Options, *, out: TextIO | None = None, err: TextIO | None = None) -> int:
    """Explain; returns the exit code.

    Raises:
        InvalidInput: a path does not exist, or an option makes no sense.
    """
    out, err = out or sys.stdout, err or sys.stderr
    host = host_of(options.host)
    world = gathered(options.world, err=err)
    scopes = chosen_scopes(world.scopes, options.sandbox)
    is_invalid = complain(world, err)
    shown.render(explanation_of(host, scopes, world), options.output, out=out)
    return 1 if is_invalid else 0


def host_of(text: str) -> str:
    """The host that is asked about, as patterns match it.

    Raises:
        InvalidInput: it is none.
    """
    try:
        return normalize_host(text)
    except ValueError as error:
        if "://" in text:
            raise InvalidInput(f"{text!r} {_Asked.URL}") from error
        if "*" in text:
            raise InvalidInput(f"{text!r} {_Asked.PATTERN}") from error
        raise InvalidInput(f"{text!r}: {error}; write a host such as api.example.com") from error


def explanation_of(host: str, scopes: Sequence[Scope], world: World) -> Explanation:
    """Every scope; those that run the same under the same policies are one."""
    groups: dict[tuple[int, tuple[Subject, ...]], list[Scope]] = {}
    for scope in scopes:
        groups.setdefault((id(scope.generation), scope.policies), []).append(scope)
    endpoints = {p.draft.subject: p.draft.endpoints for p in world.policies}
    return Explanation(
        host=host,
        places=tuple(
            _place(host, found, [(p, e) for p in found[0].policies for e in endpoints.get(p, ())], world)
            for found in groups.values()
        ),
    )


def _place(
    host: str,
    scopes: Sequence[Scope],
    endpoints: Iterable[tuple[Subject, EndpointDraft]],
    world: World,
) -> Place:
    stages = tuple(_explained(host, stage, world) for stage in scopes[0].generation.stages)
    running = [s.stage.timeout for s in stages if s.is_in and s.stage.unresolved is None]
    return Place(
        titles=tuple(s.title for s in scopes),
        stages=stages,
        endpoints=tuple(_seen(host, endpoints)),
        worst_case=min(sum(running, timedelta(0)), CHAIN_TIMEOUT),
        is_capped=sum(running, timedelta(0)) > CHAIN_TIMEOUT,
    )


def _explained(host: str, stage: Stage, world: World) -> Explained:
    return Explained(
        stage=stage,
        is_assumed=bool(world.assumed((stage,))),
        include=_first(stage.selector.include, host),
        exclude=_first(stage.selector.exclude, host),
        source=_source(stage, world),
    )


def _first(patterns: Iterable[HostPattern], host: str) -> str | None:
    return next((str(p) for p in patterns if p.matches(host)), None)


def _source(stage: Stage, world: World) -> Source:
    """Which of the three says how long a call may take; a released service's manifest can only shorten."""
    bound = world.registry.bindings.find(stage.binding)
    registration = None if bound is None else bound.registration
    is_advertised = bound is not None and bool(bound.binding.timeout)
    if is_advertised and (registration is None or stage.timeout != registration.connection.timeout):
        return Source.BINDING
    name = stage.service if registration is None else registration.name
    stored = (s for s in world.snapshot.registrations if name in _names(s))
    return Source.REGISTRATION if name and any("timeout" in s.spec for s in stored) else Source.DEFAULT


def _names(stored: Stored) -> tuple[object, str]:
    return stored.spec.get("registrationName"), stored.subject.name


def _seen(host: str, endpoints: Iterable[tuple[Subject, EndpointDraft]]) -> Iterator[Seen]:
    for policy, endpoint in endpoints:
        is_here = endpoint.host is not None and endpoint.host.matches(host)
        if is_here and (endpoint.is_skipped or endpoint.is_audited):
            yield Seen(policy=policy, endpoint=endpoint)

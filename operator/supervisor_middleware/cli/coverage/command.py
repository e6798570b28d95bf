"""`smw coverage`: which endpoints of a policy no middleware looks at, and which configs look at nothing.

Exit codes: 0, 1 the policies are not valid or (asked for) an endpoint is not covered, 2 it could not be told.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from supervisor_middleware.cli.coverage import render as shown
from supervisor_middleware.cli.offline.complaints import complain
from supervisor_middleware.cli.offline.scopes import Scope
from supervisor_middleware.cli.offline.world import Options as Offline
from supervisor_middleware.cli.offline.world import World, gathered
from supervisor_middleware.cli.options import Strictness
from supervisor_middleware.cli.rendering.forms import Form
from supervisor_middleware.compiler.endpoints import ANY_HOST, EndpointDraft
from supervisor_middleware.compiler.inspection import guarding, guards, meets, reach
from supervisor_middleware.model.generation import Generation, Stage
from supervisor_middleware.model.host_sets import Budget
from supervisor_middleware.model.violation import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is looked at."""

    world: Offline
    form: Form = Form.TABLE
    strictness: Strictness = Strictness.TELL


def run(options: Options, *, out: TextIO | None = None, err: TextIO | None = None) -> int:
    """Look and show; returns the exit code.

    Raises:
        InvalidInput: a path does not exist, or an option makes no sense.
    """
    out, err = out or sys.stdout, err or sys.stderr
    world = gathered(options.world, err=err)
    is_invalid = complain(world, err)
    coverage = coverage_of(world)
    shown.render(coverage, options.form, locate=world.locate, out=out)
    is_bad = options.strictness is Strictness.FAIL and bool(coverage.uncovered)
    return 1 if is_invalid or is_bad else 0


def coverage_of(world: World) -> shown.Coverage:
    """Every scope; those that run the same under the same policies are one."""
    groups: dict[tuple[int, tuple[Subject, ...]], list[Scope]] = {}
    for scope in world.scopes:
        groups.setdefault((id(scope.generation), scope.policies), []).append(scope)
    endpoints = {p.draft.subject: p.draft.endpoints for p in world.policies}
    return shown.Coverage(
        groups=tuple(_group(scopes, endpoints) for scopes in groups.values()), assumed=world.assumed(world.stages)
    )


def _group(scopes: Sequence[Scope], of: Mapping[Subject, Sequence[EndpointDraft]]) -> shown.Group:
    first = scopes[0]
    generation = first.generation
    budget = Budget()
    endpoints = [(policy, endpoint) for policy in first.policies for endpoint in of.get(policy, ())]
    return shown.Group(
        titles=tuple(s.title for s in scopes),
        stages=generation.stages,
        endpoints=tuple(_endpoint(policy, e, generation, budget) for policy, e in endpoints),
        dead=tuple(_dead(generation.stages, [e for _, e in endpoints], budget)),
    )


def _endpoint(policy: Subject, endpoint: EndpointDraft, generation: Generation, budget: Budget) -> shown.Endpoint:
    host = endpoint.host
    if host is None or endpoint.is_skipped:
        return shown.Endpoint(policy=policy, path=endpoint.path, host=host, is_skipped=endpoint.is_skipped)
    return shown.Endpoint(
        policy=policy,
        path=endpoint.path,
        host=host,
        is_skipped=False,
        by={s.key: reach((s.selector,), host, budget=budget).extent for s in generation.stages if guards(s)},
        reach=reach(guarding(generation.stages), host, budget=budget),
    )


def _dead(stages: Iterable[Stage], endpoints: Sequence[EndpointDraft], budget: Budget) -> Iterator[shown.Dead]:
    """Configs that no request can meet. What cannot be decided is not called dead."""
    hosts = [e.host for e in endpoints if e.host is not None and not e.is_skipped]
    for stage in stages:
        if not meets(stage.selector, (ANY_HOST,), budget=budget):
            yield shown.Dead(stage=stage, why="exclude covers include, so it selects no host")
        elif hosts and not meets(stage.selector, hosts, budget=budget):
            yield shown.Dead(stage=stage, why="no endpoint of these policies has a host that it selects")

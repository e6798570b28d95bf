"""`smw status`: gather what can be read, show it, say by the exit code whether all is well."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import typer
import yaml

from supervisor_middleware.apps.clock import utc_now
from supervisor_middleware.cli.kubeconfig import default_kubeconfig
from supervisor_middleware.cli.options import Output
from supervisor_middleware.cli.rendering.tables import console
from supervisor_middleware.cli.status import tables
from supervisor_middleware.cli.status.asking import Inspector, inspecting
from supervisor_middleware.cli.status.joining import needs_of
from supervisor_middleware.cli.status.objects import Objects, only, read_cluster, read_state
from supervisor_middleware.cli.status.reach import Target, reached_locally, reaching
from supervisor_middleware.cli.status.supervisors import (
    is_good,
    plain_supervisor,
    plain_totals,
    plain_unknown,
)
from supervisor_middleware.cli.status.watch import follow, viewing
from supervisor_middleware.errors import InvalidInput, Unavailable, Untrusted
from supervisor_middleware.wire.gen import inspection_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked. `sandbox` is a name, or namespace/name."""

    target: Target
    sandbox: str = ""
    output: Output = Output.TABLE
    is_watched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What could be read; without `answer`, why nobody said who runs what."""

    objects: Objects
    answer: pb.SupervisorList | None
    reason: str = ""

    def is_good(self, wanted: pb.Filter) -> bool:
        """Whether all that is known is well. A sandbox that is asked for and not there is not."""
        if not all(o.is_good for o in self.objects.observed):
            return False
        return self.answer is None or (is_good(self.answer) and bool(self.answer.supervisors or not wanted.sandbox))


def run(options: Options) -> int:
    """Show. 0 if everything is Ready and Programmed, and every supervisor serves what it should, else 1.

    Raises:
        InvalidInput: there is nothing to read there, or it is not clear where.
        Unavailable: the API server cannot be asked; or the operator, which alone knows of a sandbox or a change.
        Untrusted: the operator does not tell this person.
    """
    target, wanted = _scope(options)
    if options.is_watched:
        asyncio.run(_watch(target, wanted, output=options.output))
    gathered = asyncio.run(_gather(target, wanted, needs_answer=bool(wanted.sandbox)))
    _warn(gathered)
    match options.output:
        case Output.JSON:
            typer.echo(json.dumps(_plain(gathered), indent=2))
        case Output.YAML:
            typer.echo(yaml.safe_dump(_plain(gathered), sort_keys=False), nl=False)
        case Output.TABLE:
            tables.show(console(), gathered.objects.observed, gathered.answer)
            _tell_needs(target, gathered.answer)
    return 0 if gathered.is_good(wanted) else 1


def _tell_needs(target: Target, answer: pb.SupervisorList | None) -> None:
    if target.state is None or answer is None:
        return
    if lines := needs_of(answer, target.state, now=utc_now()):
        typer.echo("\n" + "\n".join(lines))


def _scope(options: Options) -> tuple[Target, pb.Filter]:
    """Where to look, and for what.

    Raises:
        InvalidInput: options contradict each other.
    """
    target = options.target
    if target.state is not None and target.kubeconfig is not None:
        raise InvalidInput("--state and --kubeconfig exclude each other: one machine, or a cluster")
    within, _, sandbox = options.sandbox.rpartition("/")
    if within and target.namespace not in {"", within}:
        raise InvalidInput("--sandbox and --namespace name two namespaces")
    namespace = within or target.namespace
    if sandbox and not namespace:
        raise InvalidInput("--sandbox: must be NAMESPACE/NAME, or a name with --namespace")
    if target.state is None and target.kubeconfig is None:
        target = replace(target, kubeconfig=default_kubeconfig())
    return replace(target, namespace=namespace), pb.Filter(namespace=namespace, sandbox=sandbox)


async def _gather(target: Target, wanted: pb.Filter, *, needs_answer: bool) -> Gathered:
    if target.state is not None:
        observed = await asyncio.to_thread(read_state, target.state)
        objects = Objects(observed=only(observed, namespace=target.namespace))
        return await _with_answer(target, objects, wanted, needs_answer=needs_answer)
    objects = await _cluster_objects(target)
    # Somebody must know something.
    return await _with_answer(target, objects, wanted, needs_answer=needs_answer or objects.is_all_hidden)


async def _cluster_objects(target: Target) -> Objects:
    from supervisor_middleware.sources.cluster_api import connect

    async with await connect(target.kubeconfig) as api:
        return await read_cluster(api, namespace=target.namespace)


async def _with_answer(target: Target, objects: Objects, wanted: pb.Filter, *, needs_answer: bool) -> Gathered:
    try:
        async with _inspector(target) as inspector:
            return Gathered(objects=objects, answer=await inspector.everything(wanted))
    except (Unavailable, Untrusted) as error:
        if needs_answer:
            raise
        return Gathered(objects=objects, answer=None, reason=str(error))


@asynccontextmanager
async def _inspector(target: Target) -> AsyncIterator[Inspector]:
    """Whoever leads, by then."""
    if target.state is not None:
        async with inspecting(reached_locally(target, target.state)) as inspector:
            yield inspector
        return
    from supervisor_middleware.sources.cluster_api import connect

    async with (
        await connect(target.kubeconfig) as api,
        reaching(target, api) as reached,
        inspecting(reached) as inspector,
    ):
        yield inspector


async def _watch(target: Target, wanted: pb.Filter, *, output: Output) -> None:
    async with viewing(output, out=sys.stdout, err=sys.stderr) as view:
        await follow(lambda: _inspector(target), wanted, view)


def _plain(gathered: Gathered) -> Sequence[dict[str, Any]]:
    objects = [o.plain() for o in gathered.objects.observed]
    if gathered.answer is None:
        return [*objects, plain_unknown(gathered.reason)]
    return [*objects, *map(plain_supervisor, gathered.answer.supervisors), plain_totals(gathered.answer)]


def _warn(gathered: Gathered) -> None:
    if gathered.objects.hidden:
        typer.echo(f"smw: not shown, since you may not list them: {', '.join(gathered.objects.hidden)}", err=True)
    if gathered.answer is None:
        typer.echo(f"smw: supervisors are not shown: {gathered.reason}", err=True)

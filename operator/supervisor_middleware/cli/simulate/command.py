"""`smw simulate`: a request through the chain, stage by stage; with cases, tests of a policy.

The supervisor's own fold and runner, and the built-ins themselves, so it is what the proxy does. Services answer as
the case says, or with --live for themselves.

Exit codes: 0 all as expected, 1 a case differs or the policies are not valid, 2 it could not be told.
"""

import asyncio
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from supervisor_middleware.cli.identities import client_identity
from supervisor_middleware.cli.offline.complaints import complain, explain
from supervisor_middleware.cli.offline.scopes import Scope, listed, no_such
from supervisor_middleware.cli.offline.world import Options as Offline
from supervisor_middleware.cli.offline.world import World, gathered
from supervisor_middleware.cli.rendering.forms import Form
from supervisor_middleware.cli.simulate.answers import Answers, Services
from supervisor_middleware.cli.simulate.cases import Case, CaseSpec, RequestSpec, read_cases
from supervisor_middleware.cli.simulate.expect import Difference, differences
from supervisor_middleware.cli.simulate.render import Bodies, Checked, Result, render
from supervisor_middleware.cli.simulate.trace import Clock, trace
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.limits import MAX_BODY_BYTES
from supervisor_middleware.model.settings import Knowledge
from supervisor_middleware.model.violation import Report, merge
from supervisor_middleware.sources.files import list_files, read_bytes

# RFC 9110 section 5.6.2, a token.
_METHOD: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is simulated: `case`, a request given by options, or the cases of `files`.

    `sandbox` is whose requests they are where a case does not say.
    """

    world: Offline
    files: tuple[Path, ...] = ()
    case: Case | None = None
    sandbox: str = ""
    form: Form = Form.TABLE
    bodies: Bodies = Bodies.HIDDEN


def run(options: Options, *, out: TextIO | None = None, err: TextIO | None = None) -> int:
    """Simulate and show; returns the exit code.

    Raises:
        InvalidInput: a path does not exist, or an option makes no sense.
    """
    out, err = out or sys.stdout, err or sys.stderr
    cases, about_files = _cases(options)
    world = gathered(options.world, err=err)
    checked = () if about_files.violations else asyncio.run(_checked(cases, world, options))
    if about_files.violations:
        explain(about_files, world, err)
        return 2
    is_invalid = complain(world, err)
    if options.case is not None and checked[0].trace is None:
        err.write(f"smw: {_unknown(checked[0].differences[0].actual, options, world)}\n")
        return 1 if is_invalid else 2
    result = Result(
        checked=checked,
        assumed=world.assumed(t.stage for c in checked if c.trace is not None for t in c.trace.turns),
        is_valid=world.report.is_valid,
        bodies=options.bodies,
        is_single=options.case is not None,
    )
    render(result, options.form, out=out)
    return 0 if result.is_as_expected else 1


def given_case(
    host: str,
    *,
    method: str,
    path: str,
    headers: Sequence[str],
    body: str | None,
    body_file: Path | None,
) -> Case | None:
    """The request that options describe; None without a host.

    Raises:
        InvalidInput: they make no sense.
    """
    if not host:
        if method or headers or body is not None or body_file is not None:
            raise InvalidInput("a request needs --host")
        return None
    if body is not None and body_file is not None:
        raise InvalidInput("--body and --body-file exclude each other")
    if method and not _METHOD.fullmatch(method):
        raise InvalidInput("a --method is a name such as PUT")
    lines: dict[str, list[str]] = {}
    for line in headers:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise InvalidInput("a --header has the form 'name: value'")
        lines.setdefault(name.strip().lower(), []).append(value.strip())
    request = RequestSpec(host=host, method=method, path=path, headers=dict(lines), body=body)
    content = None if body_file is None else _content(body_file)
    return Case(spec=CaseSpec(name=host, request=request), given=content)


def _content(path: Path) -> bytes:
    """One byte more than any body there is shows that it is too large, whatever the file holds."""
    with path.open("rb") as file:
        return file.read(MAX_BODY_BYTES + 1)


def _unknown(why: str, options: Options, world: World) -> str:
    if options.sandbox:
        return f"{options.sandbox}: {why}"
    return f"whose request is it? {why} (use --sandbox)" if world.scopes else why


def _cases(options: Options) -> tuple[tuple[Case, ...], Report]:
    if (options.case is None) is (not options.files):
        if options.case is not None:
            raise InvalidInput("--cases and --host exclude each other: a file of requests, or one request")
        raise InvalidInput("what is to be simulated? give --cases FILE, or --host HOST for one request")
    if options.case is not None:
        return (options.case,), Report()
    listing = list_files(options.files)
    if listing.missing:
        raise InvalidInput(f"{', '.join(listing.missing)}: no such file or folder")
    read = [read_cases(read_bytes(found), name=found.name) for found in listing.files]
    return tuple(c for cases, _ in read for c in cases), merge(found for _, found in read)


async def _checked(cases: Sequence[Case], world: World, options: Options) -> tuple[Checked, ...]:
    is_live = options.world.knowledge is Knowledge.LIVE
    services = Services(client_identity(options.world.credentials)) if is_live else None
    scopes = world.scopes
    try:
        return tuple([await _one(case, scopes, sandbox=options.sandbox, services=services) for case in cases])
    finally:
        if services is not None:
            await services.close()


async def _one(case: Case, scopes: Sequence[Scope], *, sandbox: str, services: Services | None) -> Checked:
    scope = scope_of(case.spec.sandbox or sandbox or None, scopes)
    if isinstance(scope, Difference):
        return Checked(case=case, differences=(scope,))
    generation = scope.generation
    clock = Clock()
    found = await trace(
        case.spec.request,
        generation,
        content=case.content,
        sandbox=scope.title,
        sandbox_id=f"{scope.sandbox.namespace}/{scope.sandbox.name}",
        choose=Answers(case.spec.answers, generation, services=services, clock=clock),
        clock=clock,
    )
    return Checked(
        case=case, trace=found, generation=generation, differences=differences(case.spec, found, generation)
    )


def scope_of(wanted: str | None, scopes: Sequence[Scope]) -> Scope | Difference:
    """The sandbox that is meant: by name, by title, or by a namespace in which all run the same."""
    found = [s for s in scopes if wanted is None or wanted in s.names]
    exact = [s for s in found if wanted != s.sandbox.namespace] or found
    if exact and all(s.generation == exact[0].generation for s in exact):
        return exact[0]
    return Difference(
        path="sandbox",
        expected=wanted or "one sandbox, or several that run the same",
        actual=f"name one of: {listed(found)}" if found else no_such(scopes),
    )

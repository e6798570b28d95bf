"""`docs/reference/cli.md` out of the command line itself."""

from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

import typer

from supervisor_middleware.cli.main import app
from tests.contract.markdown import code, page, table

_INTRO: Final = """
`kubectl-smw` is the same program, so `kubectl smw …` works where it is on the PATH.

Exit codes of every command: 0 good, 1 the answer is bad (violations, a policy that is not Programmed), 2 no answer
(usage, files, a service that cannot be reached). Long-running commands end with 0 on SIGTERM. What the environment
can set besides is in [settings](settings.md).
"""


def commands() -> dict[str, Any]:
    """Every command by what one types after `smw`."""
    return dict(_walk(typer.main.get_command(app), ""))


def cli() -> bytes:
    """The page."""
    parts = (part for name, command in commands().items() for part in _command(name, command))
    return page("Command line", _INTRO, *parts)


def _walk(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        full = f"{prefix} {name}".strip()
        if hasattr(command, "commands"):
            yield from _walk(command, full)
        else:
            yield full, command


def _command(name: str, command: Any) -> Iterator[str]:
    parameters = [p for p in command.params if p.name != "help" and not getattr(p, "hidden", False)]
    arguments = [p for p in parameters if p.param_type_name == "argument"]
    options = [p for p in parameters if p.param_type_name == "option"]
    usage = " ".join((f"smw {name}", *(_argument(a) for a in arguments), *(["[OPTIONS]"] if options else ())))
    yield f"## smw {name}"
    yield f"{code(usage)}\n\n{_prose(command.help)}"
    if command.epilog:
        lead, _, example = command.epilog.partition(":")
        yield f"{lead}: {code(example.strip())}"
    if parameters:
        yield table(("Parameter", "Default", "Meaning"), (_row(p) for p in (*arguments, *options)))


def _row(parameter: Any) -> tuple[str, str, str]:
    if parameter.param_type_name == "argument":
        return code(_argument(parameter)), "", parameter.help or ""
    spelled = ", ".join(code(o) for o in (*parameter.opts, *parameter.secondary_opts))
    repeat = " May be repeated." if parameter.multiple else ""
    return spelled, _default(parameter.default), f"{parameter.help or ''}{repeat}"


def _argument(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name) + ("..." if parameter.nargs != 1 else "")
    return name if parameter.required else f"[{name}]"


def _default(value: Any) -> str:
    if value is None or value is False or value == "" or callable(value):
        return ""
    return code(value.value if isinstance(value, Enum) else value)


def _prose(text: str | None) -> str:
    return "\n\n".join(" ".join(p.split()) for p in (text or "").split("\n\n"))

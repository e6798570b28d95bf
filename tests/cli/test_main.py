"""`smw` itself: help, usage, errors, what it loads. What a command does is tested beside this."""

import os
import sys
from pathlib import Path

import pytest

from supervisor_middleware.errors import Bug, InvalidInput, Unavailable, Untrusted
from tests.cli.commands import BIN, MODULE, Smw, in_a_process
from tests.contract.reference_cli import commands

COMMANDS = sorted(commands())
HEAVY = (
    "aiohttp",
    "cryptography",
    "envoy",
    "google.protobuf",
    "grpc",
    "kopf",
    "kubernetes",
    "structlog",
    "watchfiles",
)
MISSING = "import sys; sys.modules[{module!r}] = None; sys.argv = ['smw', *{arguments!r}]; import runpy; runpy.run_module('supervisor_middleware.cli')"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_fits_80_columns_and_ends_with_an_example(smw: Smw, command: str) -> None:
    shown = smw(*command.split(), "--help")
    assert (shown.code, shown.err) == (0, "")
    lines = shown.out.rstrip().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1].startswith(f"  Example:  smw {command}")
    assert smw(*command.split(), "-h") == shown


@pytest.mark.parametrize("group", [(), ("token",)])
def test_a_group_lists_its_commands_each_on_one_line(smw: Smw, group: tuple[str, ...]) -> None:
    shown = smw(*group, "--help")
    prefix = " ".join((*group, ""))
    for command in (c.removeprefix(prefix) for c in COMMANDS if c.startswith(prefix)):
        (line,) = (text for text in shown.out.splitlines() if text.startswith(f"  {command.split()[0]} "))
        assert line.endswith(".")
        assert "..." not in line
    assert max(map(len, shown.out.splitlines())) <= 80


def test_the_version_is_shown(smw: Smw) -> None:
    shown = smw("--version")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith("smw 0.")


def test_three_names_are_one_program() -> None:
    spellings = (MODULE, (str(BIN / "smw"),), (str(BIN / "kubectl-smw"),))
    for arguments in (("--help",), ("status", "--nonsense")):
        assert len({in_a_process(*arguments, command=command) for command in spellings}) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("frobnicate",),
        ("validate",),
        ("validate", "--no-such-option", "."),
        ("standalone",),
        ("standalone", "one", "two"),
        ("describe",),
        ("describe", "http://localhost", "--output", "xml"),
        ("serve",),
        ("token",),
        ("token", "create"),
        ("status", "--state"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_2_and_says_how(smw: Smw, arguments: tuple[str, ...]) -> None:
    shown = smw(*arguments)
    assert shown.code == 2
    said = shown.err or shown.out
    assert said.startswith(("Usage: smw", "Error: "))
    assert "Traceback" not in said


@pytest.mark.parametrize("kind", [InvalidInput, Unavailable, Untrusted, Bug])
def test_an_error_of_ours_is_one_line_and_exit_2(
    smw: Smw, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def fail(_: object) -> None:
        raise kind("ca.crt: is missing: do this")

    monkeypatch.setattr("supervisor_middleware.cli.status.command.run", fail)
    shown = smw("status")
    assert (shown.code, shown.out, shown.err) == (2, "", "smw: ca.crt: is missing: do this\n")


def test_an_error_of_the_system_is_one_line_with_the_file(smw: Smw, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        Path("/proc/no/such/file").read_text()

    monkeypatch.setattr("supervisor_middleware.cli.status.command.run", fail)
    shown = smw("status")
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == "smw: /proc/no/such/file: No such file or directory\n"


def test_an_interrupt_ends_quietly(smw: Smw, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("supervisor_middleware.cli.status.command.run", interrupt)
    shown = smw("status")
    assert (shown.code, shown.err) == (130, "")


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("kopf", ["operator"], "operator"),
        ("kubernetes", ["status", "--kubeconfig", "config"], "operator"),
        ("aiohttp", ["standalone", "."], "operator"),
        ("watchfiles", ["standalone", "{folder}", "--state", "{folder}/state"], "operator"),
        ("xds", ["supervisor", "--sandbox", "agent"], "supervisor"),
    ],
)
def test_a_missing_extra_is_named(tmp_path: Path, module: str, arguments: list[str], extra: str) -> None:
    given = [a.format(folder=tmp_path) for a in arguments]
    code = MISSING.format(module=module, arguments=given)
    shown = in_a_process(
        command=(sys.executable, "-c", code),
        SMW_ENROLLMENT_PORT="0",
        SMW_DISCOVERY_PORT="0",
        SMW_HEALTH_PORT="0",
    )
    assert shown.code == 2
    assert shown.err.splitlines()[-1] == (
        f"smw: this command needs more: pip install 'supervisor-middleware[{extra}]'"
    )
    assert "Traceback" not in shown.err


def test_a_module_that_nobody_sells_is_a_bug_and_seen_as_one(smw: Smw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "supervisor_middleware.cli.status.command", None)
    with pytest.raises(ModuleNotFoundError):
        smw("status")


@pytest.mark.parametrize("arguments", ["['--help']", "['validate', '--help']", "['--version']"])
def test_help_loads_nothing_heavy(arguments: str) -> None:
    code = f"""
import sys
sys.argv = ['smw', *{arguments}]
from supervisor_middleware.cli.main import main
try:
    main()
finally:
    print(*(m for m in {HEAVY!r} if m in sys.modules), file=sys.stderr)
"""
    shown = in_a_process(command=(sys.executable, "-c", code))
    assert (shown.code, shown.err.split()) == (0, [])


def test_help_has_no_colours_where_nobody_sees_them(smw: Smw) -> None:
    assert "\x1b" not in smw("--help").out


def test_nothing_is_written_where_smw_is_merely_looked_at(tmp_path: Path) -> None:
    in_a_process("--help", cwd=tmp_path)
    in_a_process("status", cwd=tmp_path, KUBECONFIG=os.devnull)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["somewhere", "127.0.0.1:", "127.0.0.1:https"])
def test_an_address_without_a_port_is_said_to_need_one(smw: Smw, address: str) -> None:
    shown = smw("serve", "terms", "--address", address)
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == f"smw: --address {address}: must be HOST:PORT, for example 127.0.0.1:18443\n"


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_annotations_and_a_value_exclude_each_other(smw: Smw, tmp_path: Path, output: str) -> None:
    shown = smw("validate", str(tmp_path), "--format", "github", "-o", output)
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == "smw: --format github and --output exclude each other: annotations, or a value\n"

"""`smw validate`: what it shows to people, to machines and on a pull request, and how it ends."""

import io
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from supervisor_middleware.cli.offline.world import Options, gather
from supervisor_middleware.cli.rendering.forms import Form
from supervisor_middleware.cli.rendering.progress import Progress
from supervisor_middleware.cli.rendering.reports import Result, render
from supervisor_middleware.cli.validate import result_of, run
from supervisor_middleware.middleware import serve
from supervisor_middleware.model.settings import Knowledge, Loopback
from supervisor_middleware.model.violation import Reason
from tests.cli.commands import Smw
from tests.middleware.builders import BINDING, Fake

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "validate"
FORMS = {Form.TABLE: "txt", Form.JSON: "json", Form.GITHUB: "github"}
CASES = ("valid", "valid-with-manifests", "ten-problems", "conflicts", "baselines", "bad-files")


def outcome(*paths: Path | str, form: Form = Form.TABLE, **options: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    chosen = Options(paths=tuple(map(Path, paths)), **options)  # type: ignore[arg-type]
    code = run(chosen, form=form, out=out, err=err)
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_output_is_the_recorded_one(
    case: str, form: Form, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    folder = GOLDEN / case.removesuffix("-with-manifests")
    monkeypatch.chdir(folder)
    manifests = (Path("manifests.yaml"),) if case.endswith("-with-manifests") else ()
    code, shown, err = outcome("in", form=form, manifests=manifests)
    recorded = folder / f"{case}.out.{FORMS[form]}"
    if pytestconfig.getoption("--rewrite-golden"):
        recorded.write_text(shown, encoding="utf-8")
    assert shown == recorded.read_text(encoding="utf-8")
    assert (code, err) == (0 if case.startswith("valid") else 1, "")


def test_json_and_yaml_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    monkeypatch.chdir(GOLDEN / "ten-problems")
    assert yaml.safe_load(outcome("in", form=Form.YAML)[1]) == json.loads(outcome("in", form=Form.JSON)[1])


def test_all_of_many_problems_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN / "ten-problems")
    value = json.loads(outcome("in", form=Form.JSON)[1])
    assert len(value["violations"]) >= 10
    assert all(v["file"] == "in/all-wrong.yaml" and v["line"] > 1 for v in value["violations"] if v["path"])


# ------------------------------------------------------------------------------------------------------ bad input


def test_a_missing_path_is_exit_2(smw: Smw, tmp_path: Path) -> None:
    shown = smw("validate", tmp_path / "no", tmp_path / "neither")
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == f"smw: {tmp_path}/no, {tmp_path}/neither: no such file or folder\n"


def test_an_empty_folder_is_valid_with_a_warning(tmp_path: Path) -> None:
    code, shown, _ = outcome(tmp_path)
    assert code == 0
    assert shown.startswith(f"File {tmp_path}\n  warning    holds no object of ours; is it the right path?\n")
    assert "0 objects, 0 violations, 1 warning, 0 foreign objects skipped" in shown


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a: [\n", Reason.MALFORMED),
        (b"\x7fELF\0\0", Reason.MALFORMED),
        (
            b"apiVersion: middleware.openshell.io/v1alpha1\nkind: SandboxPolicy\nmetadata: {name: a}\nspec:\n  x: "
            + b"y" * (2 * 1024 * 1024),
            Reason.TOO_LARGE,
        ),
        (b"#" * (16 * 1024 * 1024 + 1), Reason.TOO_LARGE),
    ],
    ids=["malformed", "binary", "object of 2 MiB", "file over the limit"],
)
def test_bad_input_is_a_violation_with_its_reason(tmp_path: Path, content: bytes, reason: Reason) -> None:
    (tmp_path / "p.yaml").write_bytes(content)
    code, shown, _ = outcome(tmp_path, form=Form.JSON)
    assert code == 1
    assert [v["reason"] for v in json.loads(shown)["violations"]] == [reason.value]


def test_yaml_that_is_not_ours_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text("image: x\n---\n- a\n---\napiVersion: v1\nkind: Pod\n")
    code, shown, _ = outcome(tmp_path)
    assert code == 0
    assert "3 foreign objects skipped" in shown


def test_standard_input_is_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO((GOLDEN / "ten-problems" / "in" / "all-wrong.yaml").read_bytes())

    monkeypatch.setattr("sys.stdin", Stdin())
    code, shown, _ = outcome("-")
    assert code == 1
    assert "SandboxPolicy team-a/redaction  <stdin>:20" in shown
    lines = [int(row.split()[1]) for row in shown.splitlines() if row.startswith("  ") and "violation" in row]
    assert len(set(lines)) > 3


def test_two_objects_without_a_separator_are_told_of_it(tmp_path: Path) -> None:
    text = (GOLDEN / "valid" / "in" / "policy.yaml").read_text(encoding="utf-8")
    (tmp_path / "p.yaml").write_text(f"{text}\n{text}", encoding="utf-8")
    code, shown, _ = outcome(tmp_path)
    assert code == 1
    assert "the key kind is there twice" in shown
    assert "begin another object with a line ---" in shown


def test_file_names_cannot_write_to_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[31m\n::error::.yaml").write_text("{")
    for form in FORMS:
        _, shown, _ = outcome(tmp_path, form=form)
        assert "\x1b" not in shown
        assert "\n::error::." not in shown


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "is no YAML"),
        ("bindings: []\n", "is no recorded manifest"),
        ("- 1\n", "is no recorded manifest"),
        ("registration: a\ndialect: other\nbindings: []\n", "is no recorded manifest"),
        ("registration: a\ndialect: rfc0009\nbindings: []\n---\n" * 2, "was read before"),
    ],
)
def test_a_bad_manifest_is_a_violation_about_its_file(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "manifests.yaml").write_text(content)
    code, shown, _ = outcome(GOLDEN / "valid" / "in", manifests=(tmp_path / "manifests.yaml",))
    assert code == 1
    assert message in shown


def test_a_missing_manifest_is_exit_2(smw: Smw, tmp_path: Path) -> None:
    shown = smw("validate", GOLDEN / "valid" / "in", "--manifests", tmp_path / "no.yaml")
    assert shown.code == 2
    assert "no such file" in shown.err


@pytest.mark.parametrize("content", ["", "# nothing\n", "---\n"], ids=["empty", "a comment", "no document"])
def test_a_manifests_file_without_a_manifest_is_a_violation(tmp_path: Path, content: str) -> None:
    """`smw describe -o yaml > manifests.yaml` leaves it so when the service cannot be asked."""
    (tmp_path / "manifests.yaml").write_text(content)
    code, shown, err = outcome(GOLDEN / "valid" / "in", manifests=(tmp_path / "manifests.yaml",))
    assert (code, err) == (1, "")
    assert "holds no manifest (record it with smw describe ENDPOINT -o yaml)" in shown


def test_recorded_and_live_exclude_each_other(smw: Smw) -> None:
    folder = GOLDEN / "valid"
    shown = smw("validate", folder / "in", "--manifests", folder / "manifests.yaml", "--live")
    assert shown.code == 2
    assert "exclude each other" in shown.err


def test_a_recorded_limit_is_enforced(tmp_path: Path) -> None:
    text = (GOLDEN / "valid" / "manifests.yaml").read_text().replace("262144", "1024")
    (tmp_path / "m.yaml").write_text(text)
    code, shown, _ = outcome(GOLDEN / "valid" / "in", manifests=(tmp_path / "m.yaml",))
    assert code == 1
    assert "spec.maxBodyBytes: is 65536, but binding acme/redactor takes at most 1024 bytes" in shown


def test_a_manifest_tells_of_bindings_registered_elsewhere(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "valid" / "in" / "policy.yaml", tmp_path)
    text = (tmp_path / "policy.yaml").read_text()
    (tmp_path / "policy.yaml").write_text(text[text.index("---") :])
    assert "not checked" in outcome(tmp_path)[1]
    assert "not checked" not in outcome(tmp_path, manifests=(GOLDEN / "valid" / "manifests.yaml",))[1]


# ------------------------------------------------------------------------------------------------------------ live


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Path]:
    """A folder whose registration is a service that answers, and takes an empty config only."""
    server = await serve(Fake(), address="127.0.0.1:0", tls=None)
    write_live(tmp_path, port=server.port)
    yield tmp_path
    await server.stop(grace=0)


def write_live(folder: Path, *, port: int, config: str = "{}") -> None:
    (folder / "p.yaml").write_text(
        f"""\
apiVersion: middleware.openshell.io/v1alpha1
kind: SupervisorMiddleware
metadata: {{name: acme}}
spec: {{grpcEndpoint: "http://127.0.0.1:{port}", allowInsecure: true, maxBodyBytes: 1024, timeout: 2s}}
---
apiVersion: middleware.openshell.io/v1alpha1
kind: SandboxPolicy
metadata: {{name: redaction, namespace: team-a}}
spec:
  sandboxSelector: {{}}
  networkMiddlewares:
    redact: {{middleware: {BINDING}, config: {config}, endpoints: {{include: ["**"]}}}}
"""
    )


async def findings(folder: Path) -> Result:
    options = Options(paths=(folder,), knowledge=Knowledge.LIVE, loopback=Loopback.ALLOWED)
    return result_of(await gather(options, progress=Progress(io.StringIO())))


async def test_services_are_asked_when_live(live: Path) -> None:
    result = await findings(live)
    assert result.report.is_valid
    text = (live / "p.yaml").read_text()
    (live / "p.yaml").write_text(text.replace("config: {}", "config: {key: 1}"))
    result = await findings(live)
    (violation,) = result.report.violations
    assert violation.reason is Reason.CONFIG_REJECTED


async def test_a_service_that_is_down_is_named(tmp_path: Path) -> None:
    write_live(tmp_path, port=1)
    result = await findings(tmp_path)
    assert {v.reason for v in result.report.violations} >= {Reason.SERVICE_UNREACHABLE}
    out = io.StringIO()
    render(result, Form.TABLE, out=out)
    assert "acme" in out.getvalue()


def test_only_a_service_that_is_down_is_exit_2(tmp_path: Path) -> None:
    write_live(tmp_path, port=1)
    text = (tmp_path / "p.yaml").read_text()
    (tmp_path / "p.yaml").write_text(text[: text.index("---")])
    code, shown, _ = outcome(tmp_path, knowledge=Knowledge.LIVE, loopback=Loopback.ALLOWED)
    assert "SupervisorMiddleware acme" in shown
    assert code == 2


def test_a_folder_without_credentials_is_exit_2(smw: Smw, tmp_path: Path) -> None:
    shown = smw("validate", GOLDEN / "valid" / "in", "--live", "--credentials", tmp_path)
    assert shown.code == 2
    assert "holds no credentials" in shown.err


# -------------------------------------------------------------------------------------------------------- terminal


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_for_terminals_and_for_what_takes_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.5, 2.0, 2.01, 3.0, 4.0, 5.0])
    monkeypatch.setattr("supervisor_middleware.cli.rendering.progress.time.monotonic", lambda: next(clock))
    err = Terminal()
    progress = Progress(err)
    for done in range(4):
        progress.read(done, 9)
    progress.drafted(0, 0)
    progress.checked(2, 2)
    progress.clear()
    assert err.getvalue().split("\r\x1b[K") == [
        "",
        "[===                           ]  11 %  reading 1 of 9 files",
        "[==========                    ]  33 %  reading 3 of 9 files",
        "[                              ]   0 %  reading 0 of 0 policies",
        "[==============================] 100 %  checking 2 of 2 policies",
        "",
    ]


def test_nothing_is_shown_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor_middleware.cli.rendering.progress._QUIET_SECONDS", -1.0)
    monkeypatch.setattr("supervisor_middleware.cli.rendering.progress._REDRAW_SECONDS", -1.0)
    err = io.StringIO()
    progress = Progress(err)
    progress.read(1, 9)
    progress.clear()
    assert err.getvalue() == ""


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN / "ten-problems")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    out = Terminal()
    run(Options(paths=(Path("in"),)), out=out, err=io.StringIO())
    assert "\x1b[31m" in out.getvalue()

"""`smw simulate`: requests go the way they go through the proxy, and cases say where they should have gone."""

import json
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from supervisor_middleware.cli.options import offline_options
from supervisor_middleware.cli.simulate.cases import read_cases
from supervisor_middleware.cli.simulate.command import Options, given_case, run
from supervisor_middleware.cli.simulate.render import Bodies
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.middleware import (
    Decision,
    Evaluation,
    ExistingHeader,
    Result,
    WriteHeader,
    serve,
)
from supervisor_middleware.model.limits import MAX_BODY_BYTES
from tests.cli.commands import Outcome, Smw
from tests.cli.goldens import GOLDEN, check
from tests.middleware.builders import BINDING, Fake

ROOT = Path(__file__).resolve().parents[3]
FOLDER = GOLDEN / "simulate"
SUFFIXES = {"table": "txt", "json": "json", "github": "github"}
POLICY = """
apiVersion: middleware.openshell.io/v1alpha1
kind: SandboxPolicy
metadata: {name: outbound, namespace: team-a}
spec:
  sandboxSelector: {}
  networkMiddlewares:
    one: {middleware: %s, endpoints: {include: [a.com]}}
"""


def simulated(smw: Smw, cases: str, *options: str) -> Outcome:
    return smw("simulate", "policies.yaml", "--cases", f"{cases}.cases.yaml", *options)


@pytest.fixture
def in_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize("form", SUFFIXES)
@pytest.mark.parametrize(("cases", "code"), [("good", 0), ("different", 1)])
def test_output_is_the_recorded_one(smw: Smw, cases: str, code: int, form: str, pytestconfig: pytest.Config) -> None:
    shown = simulated(smw, cases, *(["--format", "github"] if form == "github" else ["-o", form]))
    check(FOLDER / f"{cases}.out.{SUFFIXES[form]}", shown.out, pytestconfig)
    assert (shown.code, shown.err) == (code, "")


@pytest.mark.usefixtures("in_folder")
def test_content_is_shown_only_where_it_is_asked_for(smw: Smw, pytestconfig: pytest.Config) -> None:
    shown = simulated(smw, "different", "--show-bodies")
    check(FOLDER / "different.shown.out.txt", shown.out, pytestconfig)
    for form in ("table", "json", "yaml"):
        hidden = simulated(smw, "different", "-o", form).out
        for content in ("secret text", "[REDACTED]", "100%", "other secret"):
            assert content in shown.out
            assert content not in hidden


@pytest.mark.usefixtures("in_folder")
def test_everything_wrong_with_a_file_of_cases_is_said_at_once(smw: Smw, pytestconfig: pytest.Config) -> None:
    shown = simulated(smw, "broken")
    assert (shown.code, shown.out) == (2, "")
    check(FOLDER / "broken.err.txt", shown.err, pytestconfig)


@pytest.mark.usefixtures("in_folder")
def test_json_and_yaml_say_the_same(smw: Smw) -> None:
    as_json, as_yaml = (simulated(smw, "good", "-o", form).out for form in ("json", "yaml"))
    assert json.loads(as_json) == yaml.safe_load(as_yaml)


@pytest.mark.parametrize(
    ("folder", "options"),
    [
        ("examples/quickstart", ["--allow-loopback"]),
        ("examples/gitops", ["--manifests", "examples/gitops/manifests.yaml"]),
    ],
)
def test_the_cases_of_the_examples_come_true(
    smw: Smw, folder: str, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    shown = smw("simulate", folder, "--cases", f"{folder}/cases.yaml", *options)
    assert (shown.code, shown.err) == (0, "")
    assert ", 0 not" in shown.out


def test_the_same_policy_passes_the_same_cases_in_a_cluster(smw: Smw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples")
    shown = smw("simulate", "cluster", "--cases", "quickstart/cases.yaml", "--sandbox", "agents")
    assert (shown.code, shown.err) == (0, "")


def test_the_page_shows_cases_that_are_some_and_what_is_shown(smw: Smw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = Path("docs/testing-policies.md").read_text(encoding="utf-8")
    cases, found = read_cases(page.split("```yaml\n")[1].partition("```")[0].encode(), name="page")
    assert (len(cases), found.violations) == (2, ())
    command, _, shown = page.split("```console\n$ smw ")[1].partition("```")[0].partition("\n")
    assert smw(*shlex.split(command)).out == shown


# ------------------------------------------------------------------------------------------------------ one request


@pytest.mark.usefixtures("in_folder")
def test_one_request_is_given_by_options(smw: Smw, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"\xff\xfe no text")
    shown = smw(
        *("simulate", "policies.yaml", "--sandbox", "team-a/coder", "--host", "logs.example.com", "--method", "PUT"),
        *("--path", "/x?y=z", "--header", "X-One: a", "-H", "x-one:b", "--body-file", body, "--show-bodies"),
    )
    check(FOLDER / "one.out.txt", shown.out, pytestconfig)
    assert (shown.code, shown.err) == (0, "")


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sandbox", "nobody"), "nobody: no such sandbox; there is team-a/coder, team-a/idle"),
        ((), "whose request is it? name one of: team-a/coder, team-a/idle (use --sandbox)"),
    ],
)
def test_a_request_of_nobody_is_no_answer(smw: Smw, options: tuple[str, ...], message: str) -> None:
    shown = smw("simulate", "policies.yaml", *options, "--host", "a.com")
    assert (shown.code, shown.out, shown.err) == (2, "", f"smw: {message}\n")


def test_where_nobody_is_the_paths_are_in_doubt(smw: Smw, tmp_path: Path) -> None:
    shown = smw("simulate", tmp_path, "--host", "a.com")
    assert (shown.code, shown.out) == (2, "")
    assert "is it the right path?" in shown.err
    assert shown.err.endswith("\nsmw: there is no sandbox and no policy\n")


def test_policies_that_nobody_can_read_are_what_is_wrong(smw: Smw, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("a: [", encoding="utf-8")
    assert smw("simulate", tmp_path, "--host", "a.com").code == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "what is to be simulated? give --cases FILE, or --host HOST for one request"),
        (
            ("--host", "a.com", "--cases", "x"),
            "--cases and --host exclude each other: a file of requests, or one request",
        ),
        (("--host", "a.com", "--method", "a b"), "a --method is a name such as PUT"),
        (("--body", "x"), "a request needs --host"),
        (("--host", "a.com", "--body", "x", "--body-file", "y"), "--body and --body-file exclude each other"),
        (("--host", "a.com", "--header", "none"), "a --header has the form 'name: value'"),
        (("--cases", "no-such-file"), "no-such-file: no such file or folder"),
        (("--host", "a.com", "--body-file", "no-such-file"), "no-such-file: No such file or directory"),
    ],
)
def test_options_that_make_no_sense_are_exit_2(
    smw: Smw, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    shown = smw("simulate", tmp_path, *options)
    assert (shown.code, shown.out, shown.err) == (2, "", f"smw: {message}\n")


def test_cases_on_standard_input_are_a_file(smw: Smw, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    class Stdin:
        buffer = io.BytesIO(b"- {name: a, sandbox: team-a/coder, request: {host: pypi.org}}\n")

    monkeypatch.setattr("sys.stdin", Stdin())
    shown = smw("simulate", FOLDER / "policies.yaml", "--cases", "-")
    assert (shown.code, shown.err) == (0, "")


def test_policies_that_are_not_valid_are_no_success(smw: Smw, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(POLICY % "openshell/none")
    (tmp_path / "cases").write_text("- {name: a, request: {host: a.com}, expect: {code: unresolved_stage}}\n")
    shown = smw("simulate", tmp_path / "p.yaml", "--cases", tmp_path / "cases")
    assert shown.code == 1
    assert "is no built-in" in shown.err
    assert shown.out.splitlines()[0].startswith("ok    a")
    assert shown.out.splitlines()[-1] == "1 case, 1 as expected, 0 not; the policies are not valid"


# -------------------------------------------------------------------------------------------------------------- live


@pytest.fixture
async def service() -> AsyncIterator[int]:
    async def answer(evaluation: Evaluation) -> Result:
        if evaluation.body == b"deny":
            return Result(decision=Decision.DENY)
        seen = WriteHeader(
            name="x-openshell-middleware-seen",
            value=evaluation.context.sandbox_id,
            on_existing=ExistingHeader.OVERWRITE,
        )
        return Result(decision=Decision.ALLOW, mutations=(seen,))

    server = await serve(Fake(answer), address="127.0.0.1:0", tls=None)
    yield server.port
    await server.stop(grace=0)


async def test_services_answer_for_themselves_where_they_are_asked(service: int, tmp_path: Path) -> None:
    import asyncio
    import io

    registration = f"""
apiVersion: middleware.openshell.io/v1alpha1
kind: SupervisorMiddleware
metadata: {{name: acme}}
spec: {{grpcEndpoint: "http://127.0.0.1:{service}", maxBodyBytes: 1024, timeout: 10s, allowInsecure: true}}
---
apiVersion: middleware.openshell.io/v1alpha1
kind: Sandbox
metadata: {{name: coder, namespace: team-a}}
---
"""
    (tmp_path / "p.yaml").write_text(registration + POLICY % BINDING)
    (tmp_path / "cases").write_text(
        """
- name: allowed
  request: {host: a.com, body: x}
  expect: {decision: allow, headers: {x-openshell-middleware-seen: team-a/coder}}
- name: denied
  request: {host: a.com, body: deny}
  expect: {decision: deny, by: one}
"""
    )
    out = io.StringIO()
    options = Options(
        world=offline_options([tmp_path / "p.yaml"], manifests=None, live=True, allow_loopback=True),
        files=(tmp_path / "cases",),
        bodies=Bodies.SHOWN,
    )
    code = await asyncio.to_thread(run, options, out=out)
    assert (out.getvalue().splitlines()[-1], code) == ("2 cases, 2 as expected, 0 not", 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "holds no case (write a list of cases)"), (b"- [", "violation  ")],
    ids=["empty", "no YAML"],
)
def test_a_file_without_cases_is_no_answer(smw: Smw, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "cases").write_bytes(content)
    shown = smw("simulate", FOLDER / "policies.yaml", "--cases", tmp_path / "cases")
    assert (shown.code, shown.out, message in shown.err) == (2, "", True)


def test_a_case_of_options_keeps_the_lines_of_a_header() -> None:
    case = given_case("a.com", method="", path="/", headers=["A: 1", "a: 2"], body="x", body_file=None)
    assert case is not None
    assert (case.spec.request.headers, case.content) == ({"a": ["1", "2"]}, b"x")
    with pytest.raises(InvalidInput):
        given_case("a.com", method="", path="/", headers=[": 1"], body=None, body_file=None)


def test_a_body_without_end_is_read_as_far_as_a_body_may_go() -> None:
    case = given_case("a.com", method="", path="/", headers=[], body=None, body_file=Path("/dev/zero"))
    assert case is not None
    assert len(case.content or b"") == MAX_BODY_BYTES + 1

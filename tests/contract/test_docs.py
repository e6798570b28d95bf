"""What the documentation says is so: links lead somewhere, examples validate, commands exist, the reference is fresh."""

import asyncio
import re
import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from supervisor_middleware.audit.events import Changed, ChangeKind
from supervisor_middleware.audit.ocsf import records
from supervisor_middleware.compiler.binding import bind
from supervisor_middleware.compiler.drafts import draft_policy
from supervisor_middleware.compiler.pipeline import compile_policy
from supervisor_middleware.compiler.questions import questions
from supervisor_middleware.compiler.registration import draft_registration
from supervisor_middleware.compiler.structure import parse
from supervisor_middleware.middleware.builtins import BUILTIN_BINDINGS, BUILTINS
from supervisor_middleware.model.hosts import normalize_host, parse_pattern
from supervisor_middleware.model.resources import SandboxSpec
from supervisor_middleware.model.sandbox import API_VERSION
from supervisor_middleware.model.settings import CompilerSettings, Knowledge, Loopback
from supervisor_middleware.model.snapshot import BundleKey, Stored
from supervisor_middleware.model.verdict import Accepted, Rejected, Verdict, VerdictKey
from supervisor_middleware.model.violation import Report, Subject, merge, report
from tests.cli.commands import Smw
from tests.contract.generate import GENERATORS, ROOT, drifted
from tests.contract.reference import reference
from tests.contract.reference_cli import commands

PAGES: Final = tuple(
    sorted(
        p.relative_to(ROOT)
        for p in (
            *ROOT.glob("*.md"),
            *(p for folder in ("docs", "examples", "charts") for p in ROOT.glob(f"{folder}/**/*.md")),
        )
    )
)
SETTINGS: Final = CompilerSettings(builtins=BUILTIN_BINDINGS, loopback=Loopback.ALLOWED, knowledge=Knowledge.OFFLINE)
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)

FENCE: Final = re.compile(r"^( *)(?:```|~~~)(\w*)[^\n]*\n(.*?)^\1(?:```|~~~)$", re.MULTILINE | re.DOTALL)
LINK: Final = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
INLINE: Final = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
COMMAND: Final = re.compile(r"(?:^|[\s(;&|])(?:\.venv/bin/)?smw( [^\n|;&)#>]*)?")


# ------------------------------------------------------------------------------------------------------------- links


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    text = _without_code(_text(page))
    assert [t for t in _targets(text) if not _leads_somewhere(page, t)] == []


def test_every_page_of_docs_can_be_reached_from_the_readme() -> None:
    reached, waiting = {Path("README.md")}, [Path("README.md")]
    while waiting:
        page = waiting.pop()
        for target in _targets(_without_code(_text(page))):
            path = _relative(page, target)
            if path is not None and path.suffix == ".md" and path not in reached and (ROOT / path).is_file():
                reached.add(path)
                waiting.append(path)
    assert set(PAGES) - reached == set()


def _targets(text: str) -> Iterator[str]:
    for found in LINK.finditer(text):
        target = next(g for g in found.groups() if g)
        if not re.match(r"[a-z]+:", target):
            yield target


def _relative(page: Path, target: str) -> Path | None:
    name = target.partition("#")[0]
    path = (ROOT / page.parent / name).resolve() if name else ROOT / page
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else None


def _leads_somewhere(page: Path, target: str) -> bool:
    path = _relative(page, target)
    if path is None or not (ROOT / path).exists():
        return False
    anchor = target.partition("#")[2]
    return not anchor or path.suffix != ".md" or anchor in _anchors(_text(path))


def _anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _without_fences(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


# -------------------------------------------------------------------------------------------------------------- YAML


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_example_of_ours_validates(page: Path) -> None:
    documents = list(_yaml_documents(page))
    found = merge(_judged(d, documents) for d in documents if d.get("apiVersion") == API_VERSION)
    assert [f"{v.subject}: {v}" for v in found.violations] == []


def test_examples_of_every_kind_are_found() -> None:
    kinds = {d.get("kind") for page in PAGES for d in _yaml_documents(page)}
    assert kinds >= {"SupervisorMiddleware", "SandboxPolicy", "ClusterSandboxPolicy", "Sandbox"}


def _yaml_documents(page: Path) -> Iterator[Mapping[str, Any]]:
    for found in FENCE.finditer(_text(page)):
        if found[2] in {"yaml", "yml"}:
            indent = len(found[1])
            body = "\n".join(line[indent:] for line in found[3].splitlines())
            for document in yaml.safe_load_all(body):
                if isinstance(document, Mapping) and "kind" in document:
                    yield document


def _judged(document: Mapping[str, Any], beside: list[Mapping[str, Any]]) -> Report:
    metadata, kind = document["metadata"], document["kind"]
    stored = Stored(
        subject=Subject(kind=kind, namespace=metadata.get("namespace"), name=metadata["name"]),
        uid=metadata["name"],
        generation=1,
        created_at=NOW,
        spec=document.get("spec", {}),
    )
    match kind:
        case "ClusterSandboxPolicy":
            return _compiled(stored)
        case "SandboxPolicy":
            assert stored.subject.namespace, "a policy in an example says where it belongs"
            return _compiled(stored)
        case "SupervisorMiddleware":
            return draft_registration(stored, bundles=dict(_bundles(beside)), settings=SETTINGS)[1]
        case "Sandbox":
            return report(parse(SandboxSpec, dict(metadata), subject=stored.subject, at=("metadata",))[0])
        case _:
            pytest.fail(f"no kind of ours that people write: {kind}")


def _compiled(stored: Stored) -> Report:
    """Offline: built-ins are asked, services are not."""
    bindings = bind((), BUILTIN_BINDINGS)
    verdicts: dict[VerdictKey, Verdict] = {}
    for question in questions(draft_policy(stored)[0], bindings):
        binding = question.key.binding
        refusal = asyncio.run(BUILTINS[binding].validate_config(binding, question.config))
        verdicts[question.key] = Accepted() if refusal is None else Rejected(refusal)
    return compile_policy(stored, bindings=bindings, verdicts=verdicts, settings=SETTINGS).report


def _bundles(documents: list[Mapping[str, Any]]) -> Iterator[tuple[BundleKey, str]]:
    for document in documents:
        if document["kind"] == "ConfigMap":
            metadata = document["metadata"]
            for key, text in document["data"].items():
                yield BundleKey("ConfigMap", metadata["namespace"], metadata["name"], key), text


def test_the_guides_host_patterns_match_as_it_says() -> None:
    section = (
        _text(Path("docs/guide.md")).partition("### Host patterns")[2].partition("\n### ")[0].partition("\n## ")[0]
    )
    rows = [
        [re.findall(r"`([^`]+)`", c) for c in r.split("|")[1:4]] for r in section.splitlines() if r.startswith("| `")
    ]
    assert len(rows) >= 8
    for (pattern,), matching, missing in rows:
        assert [h for h in matching if not parse_pattern(pattern).matches(normalize_host(h))] == []
        assert [h for h in missing if parse_pattern(pattern).matches(normalize_host(h))] == []


def test_every_audited_change_is_in_the_table_with_its_severity() -> None:
    section = _text(Path("docs/operations.md")).partition("\n## Audit events\n")[2].partition("\n## ")[0]
    rows = [row.split("|") for row in section.splitlines() if row.startswith("| `")]
    told = {name: row[4].strip() for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert told == {kind.value: _severity(kind) for kind in ChangeKind}


def _severity(kind: ChangeKind) -> str:
    (found,) = records(Changed(kind=kind, subject="s"), time=NOW, product_version="1", device="d")
    return str(found["severity"])


# ---------------------------------------------------------------------------------------------------------- commands


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_command_mentioned_exists(page: Path) -> None:
    assert [c for c in _mentioned(page) if (problem := _problem(c))] == [], problem


def _mentioned(page: Path) -> Iterator[str]:
    text = _text(page)
    for fence in FENCE.finditer(text):
        if fence[2] in {"sh", "bash", "console", "shell"}:
            yield from (c[1] or "" for c in COMMAND.finditer(fence[3].replace("\\\n", " ")))
    for inline in INLINE.finditer(_without_fences(text)):
        if re.match(r"smw($|\s)", inline[1]):
            yield " ".join(inline[1].split()).removeprefix("smw")


def _problem(typed: str) -> str:
    """What is wrong with the words after `smw`; nothing for `smw` alone."""
    words = [w for w in shlex.split(typed.replace("…", "").replace("'", "")) if w != "..."]
    known = commands()
    if not words or words[0] in {"--help", "--version", "--install-completion", "--show-completion"}:
        return ""
    name = next((n for n in known if words[: len(n.split())] == n.split()), None)
    if name is None:
        # A group on its own, or the first of several names (`operator|standalone`).
        is_group = any(n.startswith(f"{words[0]} ") for n in known) and len(words) == 1
        return "" if is_group or words[0] in known else f"there is no smw {' '.join(words)}"
    options = {o for p in known[name].params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
    unknown = [w for w in words if w.startswith("-") and w != "-" and w.partition("=")[0] not in options]
    return f"smw {name} has no {', '.join(unknown)}" if unknown else ""


# Run as they stand in the documentation, among the files that they name.
SHOWN: Final = re.compile(r"^\$ smw (.* sandboxes\.yaml .*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


def test_what_the_documentation_shows_of_the_gitops_example_is_what_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT / "examples/gitops")
    monkeypatch.setenv("COLUMNS", "120")
    smw = Smw(monkeypatch, capsys)
    shown = [(c[1], c[2]) for page in PAGES for f in FENCE.finditer(_text(page)) for c in SHOWN.finditer(f[3])]
    shown = [(command, output) for command, output in shown if "../base" not in command]
    assert len(shown) >= 5
    for command, output in shown:
        printed = iter(smw(*shlex.split(command)).out.splitlines())
        # In this order, and perhaps with others between them.
        assert [line for line in output.splitlines() if line != "..." and line not in printed] == [], command


# --------------------------------------------------------------------------------------------------------- reference


def test_the_generated_reference_is_fresh() -> None:
    generator = next(g for g in GENERATORS if g.produce is reference)
    assert drifted(generator) == {}


# -------------------------------------------------------------------------------------------------------------- text


def _text(page: Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def _without_fences(text: str) -> str:
    return FENCE.sub("", text)


def _without_code(text: str) -> str:
    return INLINE.sub("", _without_fences(text))

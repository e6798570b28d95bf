"""The Containerfile, read: nothing here can build it. What it copies is there, and the result has no root and no shell."""

import importlib.util
import json
import re
import shlex
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tests.contract.generate import ROOT

_TEXT = (ROOT / "Containerfile").read_text()


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction."""

    name: str
    arguments: str


def _stages() -> list[list[Step]]:
    """Instructions of each stage, the ones before the first FROM apart."""
    joined = re.sub(r"\\\n\s*", " ", _TEXT)
    lines = (line.strip() for line in joined.splitlines())
    stages: list[list[Step]] = [[]]
    for line in lines:
        if not line or line.startswith("#"):
            continue
        name, _, arguments = line.partition(" ")
        if name == "FROM":
            stages.append([])
        stages[-1].append(Step(name, arguments.strip()))
    return stages


def _all(stage: list[Step], name: str) -> list[str]:
    return [s.arguments for s in stage if s.name == name]


def test_it_has_two_stages_and_each_image_is_an_argument() -> None:
    before, *stages = _stages()
    defaults = dict(a.split("=", 1) for a in _all(before, "ARG"))
    assert [s[0].arguments.partition(" ")[0] for s in stages] == ["${BUILDER}", "${RUNTIME}"]
    assert set(defaults) == {"BUILDER", "RUNTIME"}
    assert all(":" in image and not image.endswith(":latest") for image in defaults.values())
    python = {re.search(r"3\.\d+", defaults["BUILDER"]), re.search(r"python3\.\d+", _TEXT)}
    assert {m[0].removeprefix("python") for m in python if m} == {"3.11"}


def test_it_has_buffers_of_connections_given_back() -> None:
    *_, runtime = _stages()
    assert "MALLOC_MMAP_THRESHOLD_=131072" in _all(runtime, "ENV")


def test_what_it_copies_is_there_and_reaches_the_build() -> None:
    ignored = [line for line in (ROOT / ".containerignore").read_text().splitlines() if line and line[0] != "#"]
    allowed = [line[1:] for line in ignored if line.startswith("!")]
    assert ignored[0] == "*"
    _, build, _ = _stages()
    sources = [source for copied in _all(build, "COPY") for source in shlex.split(copied)[:-1]]
    assert [s for s in sources if not (ROOT / s).exists()] == []
    assert [s for s in sources if not any(fnmatch(s, pattern) for pattern in allowed)] == []
    assert [a for a in allowed if not any(Path(a) == Path(s) for s in sources)] == []


def test_everything_that_the_wheel_takes_along_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = [*wheel["packages"], *wheel["force-include"], project["project"]["readme"], "LICENSE"]
    _, build, _ = _stages()
    sources = {Path(source) for copied in _all(build, "COPY") for source in shlex.split(copied)[:-1]}
    assert [n for n in needed if not sources & {Path(n), *Path(n).parents}] == []


def test_it_installs_extras_that_exist_with_the_projects_pins() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    _, build, _ = _stages()
    run, *_ = _all(build, "RUN")
    extras = re.search(r"\.\[([a-z,]+)\]", run)
    assert extras is not None
    assert set(extras[1].split(",")) == {"operator", "supervisor"}
    assert set(extras[1].split(",")) <= set(project["project"]["optional-dependencies"])
    assert "PIP_CONSTRAINT=requirements/dev.txt" in run


def test_both_images_are_the_same_debian_since_libraries_go_from_one_to_the_other() -> None:
    before, *_ = _stages()
    defaults = dict(a.split("=", 1) for a in _all(before, "ARG"))
    releases = {"bookworm": "debian12", "trixie": "debian13"}
    (codename,) = [c for c in releases if c in defaults["BUILDER"]]
    assert releases[codename] in defaults["RUNTIME"]


def test_the_result_runs_as_a_number_without_a_shell() -> None:
    *_, result = _stages()
    (user,) = _all(result, "USER")
    assert all(int(number) > 0 for number in user.split(":"))
    assert [s for s in result if s.name in {"RUN", "ADD", "SHELL"}] == []
    assert all(copied.startswith("--from=build ") for copied in _all(result, "COPY"))
    # A JSON array: anything else would be given to a shell that is not there.
    (entry,) = (json.loads(e) for e in _all(result, "ENTRYPOINT"))
    assert [json.loads(c) for c in _all(result, "CMD")] == [["operator"]]
    assert entry[1] == "-m"
    assert importlib.util.find_spec(f"{entry[2]}.__main__") is not None

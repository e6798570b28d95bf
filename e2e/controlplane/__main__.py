"""`python -m e2e.controlplane up|status|down`: a control plane for a person, which outlives the command.

Its directory is its state: the servers are known by it, so `down` needs nothing that `up` remembered.
"""
# ruff: noqa: T201 - printing is what these commands are for

import argparse
import json
import subprocess
import sys
from pathlib import Path

from e2e.controlplane import guard
from e2e.controlplane.build import BuildError, ensure
from e2e.controlplane.cluster import BootError, Controllers, ControlPlane, Lifetime
from e2e.controlplane.lock import exclusive

_STATE = Path(__file__).resolve().parents[2] / ".state" / "controlplane"
_EXPECTED = frozenset({"etcd", "kube-apiserver", "kube-controller-manager"})


def up(directory: Path) -> int:
    """Start one unless it runs; print what to do next."""
    if version := _serving_version(directory):
        print(f"Already up: Kubernetes {version}")
    else:
        if directory.exists():
            print("The last one ended by itself; its data goes.")
            guard.clear(directory)
        binaries = ensure()
        plane = ControlPlane(
            binaries=binaries, controllers=Controllers.RUNNING, directory=directory, lifetime=Lifetime.DETACHED
        )
        plane.start()
        print(f"Kubernetes {_serving_version(directory)} is up at {plane.url}")
    print(f"  export KUBECONFIG={directory}/kubeconfig")
    print(f"  alias kubectl={ensure().kubectl}")
    print("There is no node: Pods stay Pending. Stop it and remove its data: make kube-down")
    return 0


def status(directory: Path) -> int:
    """Print whether it serves, and its servers; the exit code says the same (1: it does not)."""
    servers = guard.processes_of(directory)
    version = _serving_version(directory)
    print(f"Kubernetes {version} is up: {directory}" if version else f"Not up: {directory}")
    for pid, name in sorted(servers.items()):
        print(f"  {name} (process {pid})")
    return 0 if version else 1


def down(directory: Path) -> int:
    """Stop it and remove its data; fine if there is none."""
    known = directory.exists()
    guard.clear(directory)
    print("Stopped; its data is removed." if known else "Nothing to stop.")
    return 0


def _serving_version(directory: Path) -> str | None:
    """Return the version that a complete, answering control plane reports; otherwise nothing."""
    running = set(guard.processes_of(directory).values())
    if not running.issuperset(_EXPECTED):
        return None
    options = (f"--kubeconfig={directory}/kubeconfig", "--output=json", "--request-timeout=5s")
    command = [str(ensure().kubectl), "version", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    return str(json.loads(done.stdout)["serverVersion"]["gitVersion"])


def main() -> int:
    """Run the command that the arguments name."""
    commands = {"up": up, "down": down, "status": status}
    parser = argparse.ArgumentParser(prog="python -m e2e.controlplane", description=__doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument(
        "--directory", type=Path, default=_STATE, help="where it lives (default: .state/controlplane)"
    )
    arguments = parser.parse_args()
    directory: Path = arguments.directory.resolve()
    if directory.exists() and any(directory.iterdir()) and not (directory / "pki").is_dir():
        parser.error(f"{directory} holds something else; it would be removed")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(directory.with_name(f"{directory.name}.lock")):
        return commands[arguments.command](directory)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BuildError, BootError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)

"""Ends a control plane whose owner is gone, and knows which processes belong to one.

Run as a program with a directory as its argument, it waits for its standard input to close. The owner holds the other
end, so that happens when the owner ends in whatever way, SIGKILL included; then the guard kills every process that
belongs to the directory and removes it. (A parent-death signal would not do: Linux sends it when the *thread* that
started the child ends, and nobody would remove the directory.)

Imports only the standard library: the program starts isolated from site-packages, in a few milliseconds.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

_SERVERS = frozenset({"etcd", "kube-apiserver", "kube-controller-manager"})


def processes_of(directory: Path) -> dict[int, str]:
    """Return the servers that run in the directory: process ID to program name.

    They are known by their command line, not by a noted ID: no window in which a process exists and is not noted, and
    an ID that the system has given to someone else is never mistaken for ours.
    """
    return {
        pid: Path(arguments[0]).name
        for pid, arguments in _command_lines()
        if Path(arguments[0]).name in _SERVERS and any(f"{directory}/" in argument for argument in arguments[1:])
    }


def clear(directory: Path) -> None:
    """Kill what runs in the directory, without asking, and remove it. Its data is not wanted any more."""
    while found := processes_of(directory):
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    shutil.rmtree(directory, ignore_errors=True)


def _command_lines() -> list[tuple[int, list[str]]]:
    proc = Path("/proc")
    if (proc / "self" / "cmdline").exists():
        lines = [(int(entry.name), _read_arguments(entry)) for entry in proc.iterdir() if entry.name.isdigit()]
    else:
        listing = subprocess.run(["ps", "-axww", "-o", "pid=,command="], capture_output=True, text=True, check=True)
        rows = [row.split() for row in listing.stdout.splitlines()]
        lines = [(int(row[0]), row[1:]) for row in rows]
    return [(pid, arguments) for pid, arguments in lines if arguments]


def _read_arguments(entry: Path) -> list[str]:
    try:
        return (entry / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:  # it ended while we looked, or it belongs to someone whom we may not ask
        return []


if __name__ == "__main__":
    sys.stdin.buffer.read()
    clear(Path(sys.argv[1]))

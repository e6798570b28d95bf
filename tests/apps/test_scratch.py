"""Directories that go with their process, also when it was killed."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from supervisor_middleware.apps.scratch import PREFIX, scratch_directory

HOLDER = """
    import sys
    from pathlib import Path
    from supervisor_middleware.apps.scratch import scratch_directory

    with scratch_directory(Path(sys.argv[1])) as directory:
        (directory / "envoy").mkdir()
        (directory / "envoy" / "bootstrap.json").touch()
        print(directory, flush=True)
        sys.stdin.read()
"""


def a_holder(parent: Path) -> "subprocess.Popen[str]":
    command = (sys.executable, "-c", textwrap.dedent(HOLDER), str(parent))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)


def test_it_is_private_and_gone_after_the_block(tmp_path: Path) -> None:
    with scratch_directory(tmp_path) as directory:
        assert directory.stat().st_mode & 0o777 == 0o700
        (directory / "processor.sock").touch()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_is_held_is_not(tmp_path: Path) -> None:
    with a_holder(tmp_path) as killed, a_holder(tmp_path) as alive:
        assert killed.stdout is not None
        assert alive.stdout is not None
        abandoned, held = (Path(p.stdout.readline().strip()) for p in (killed, alive))  # type: ignore[union-attr]
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert (abandoned / "envoy" / "bootstrap.json").exists()
        with scratch_directory(tmp_path) as ours:
            assert set(tmp_path.iterdir()) == {held, ours}
        alive.communicate()
    assert list(tmp_path.iterdir()) == []


def test_what_is_none_of_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "target")
    (tmp_path / f"{PREFIX}file").touch()
    (tmp_path / "smw-demo-x").mkdir()
    before = set(tmp_path.iterdir())
    with scratch_directory(tmp_path):
        pass
    assert set(tmp_path.iterdir()) == before

import errno
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from supervisor_middleware.audit.events import Changed, ChangeKind
from supervisor_middleware.audit.sink import JsonLinesSink

EVENT = Changed(kind=ChangeKind.POLICY_ACCEPTED, subject="SandboxPolicy team/policy")


def a_sink(path: Path | None) -> JsonLinesSink:
    return JsonLinesSink(path, product_version="1", device="sandbox", now=lambda: datetime(2026, 1, 1, tzinfo=UTC))


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_event_is_a_line_that_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    sink = a_sink(path)
    sink.emit(EVENT)
    assert [r["class_uid"] for r in lines(path)] == [5019]
    sink.emit(Changed(kind=ChangeKind.POLICY_REJECTED, subject="odd\nname é \udc80"))
    assert len(lines(path)) == 2
    sink.close()
    sink.emit(EVENT)
    assert len(lines(path)) == 3
    sink.close()
    sink.close()


def test_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.touch(mode=0o644)
    path.chmod(0o644)
    for target in (path, tmp_path / "new.jsonl"):
        sink = a_sink(target)
        sink.emit(EVENT)
        sink.close()
        assert target.stat().st_mode & 0o777 == 0o600


def test_standard_output_is_the_other_target(capfd: pytest.CaptureFixture[str]) -> None:
    sink = a_sink(None)
    sink.emit(EVENT)
    sink.close()
    sink.emit(EVENT)
    assert len(capfd.readouterr().out.splitlines()) == 2


def test_failure_to_write_is_counted_and_said_once(tmp_path: Path) -> None:
    path = tmp_path / "later" / "audit.jsonl"
    sink = a_sink(path)
    with capture_logs() as logs:
        sink.emit(EVENT)
        sink.emit(EVENT)
    assert sink.lost == 2
    assert [(entry["log_level"], entry["event"]) for entry in logs] == [("error", "audit events are being lost")]
    path.parent.mkdir()
    with capture_logs() as logs:
        sink.emit(EVENT)
        path.unlink()
        path.parent.rmdir()
        sink.close()
        sink.emit(EVENT)
    assert sink.lost == 3
    assert len(logs) == 1


def test_line_that_a_full_disk_cut_short_does_not_swallow_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    sink = a_sink(path)
    real, room = os.write, [20]

    def write(descriptor: int, data: bytes) -> int:
        if room and room[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(descriptor, data[: room[0]] if room else data)
        if room:
            room[0] -= written
        return written

    monkeypatch.setattr(os, "write", write)
    with capture_logs() as logs:
        sink.emit(EVENT)
    assert (sink.lost, logs[0]["error"]) == (1, "No space left on device")
    room.clear()
    sink.emit(EVENT)
    sink.close()
    torn, whole = path.read_text().splitlines()
    assert len(torn) == 20
    assert json.loads(whole)["class_uid"] == 5019


def test_mode_that_cannot_be_narrowed_is_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    path.touch()
    path.chmod(0o644)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchmod", refuse)
    sink = a_sink(path)
    sink.emit(EVENT)
    assert (sink.lost, path.read_text()) == (1, "")


def test_full_device_never_raises() -> None:
    sink = a_sink(Path("/dev/full"))
    sink.emit(EVENT)
    assert sink.lost == 1

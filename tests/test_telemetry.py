"""Logs hold no text of an exception and no value of a frame, however an error gets there: on a terminal and off it."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

CANARY = "canary-9f31"
# Each way in which an error's text reaches a log without anybody writing it there.
WAYS = {
    "a task that nobody waits for": "await gather_nothing()",
    "a callback": "loop.call_soon(fail, value); await asyncio.sleep(0.01)",
    "a library": "try: fail(value)\nexcept ValueError: logging.getLogger('library').exception('It failed')",
    "our own logger": "try: fail(value)\nexcept ValueError: structlog.get_logger().exception('It failed')",
    "an error that is handed over": "try: fail(value)\nexcept ValueError as e: logging.error('It failed', exc_info=e)",
}
PROGRAM = """
import asyncio, gc, logging, os, structlog
from supervisor_middleware.telemetry import configure_logging

def fail(value):
    local = value
    raise ValueError(value)

async def late(value):
    fail(value)

async def gather_nothing():
    task = asyncio.create_task(late(os.environ["CANARY"]))
    await asyncio.sleep(0.01)
    del task
    gc.collect()

async def main():
    loop, value = asyncio.get_running_loop(), os.environ["CANARY"]
    {way}

configure_logging()
asyncio.run(main())
"""


def logged(way: str, *, stderr: int) -> None:
    program = PROGRAM.replace("{way}", way.replace("\n", "\n    "))
    package = str(Path(__file__).parents[1] / "operator")
    environment = {**os.environ, "CANARY": CANARY, "PYTHONPATH": package}
    subprocess.run([sys.executable, "-c", program], env=environment, stderr=stderr, check=True, timeout=30)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_off_a_terminal_an_error_is_a_type_and_a_place(way: str, tmp_path: Path) -> None:
    file = tmp_path / "stderr"
    with file.open("wb") as stderr:
        logged(way, stderr=stderr.fileno())
    text = file.read_text()
    assert CANARY not in text
    assert "ValueError < fail:" in text


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_on_a_terminal_it_is_the_same(way: str) -> None:
    ours, theirs = pty.openpty()
    try:
        logged(way, stderr=theirs)
        text = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert CANARY not in text
    assert "ValueError < fail:" in text

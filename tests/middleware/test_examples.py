"""What a service author reads runs: the example, the guide's snippets, and a service as a process."""

import asyncio
import os
import re
import runpy
import signal
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.middleware import Decision, Dialect, ExistingHeader, WriteHeader, run
from supervisor_middleware.middleware.conformance import check_in_process
from supervisor_middleware.middleware.process import SERVICES, run_service
from supervisor_middleware.wire import codec
from tests.middleware.builders import an_evaluation, call, evaluate, plain_channel

ROOT = Path(__file__).parents[2]
HELLO = ROOT / "examples" / "middleware" / "hello.py"
GUIDE = ROOT / "docs" / "sdk.md"


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


async def test_the_example_greets_and_conforms() -> None:
    hello = runpy.run_path(str(HELLO))["Hello"]()
    async with plain_channel(hello) as channel:
        result = await evaluate(channel, an_evaluation(binding="acme/hello"))
    assert result.decision is Decision.ALLOW
    assert result.mutations == (
        WriteHeader(name="x-openshell-middleware-hello", value="sandbox-1", on_existing=ExistingHeader.OVERWRITE),
    )
    assert await check_in_process(hello) == []


async def test_the_guide_shows_the_example_and_its_snippets_run(tmp_path: Path) -> None:
    first, *others = snippets()
    assert first == HELLO.read_text()
    names: dict[str, Any] = {"__name__": "guide", "TLS": tmp_path}
    for snippet in (first, *others):
        exec(compile(snippet, str(GUIDE), "exec"), names)
    for name, value in list(names.items()):
        if name.startswith("test_"):
            await value()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_service_runs_until_it_is_told_to_stop(number: signal.Signals) -> None:
    bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(run_service("terms", address="127.0.0.1:0", ready=bound.set_result))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{await bound}") as channel:
        answer = await call(channel, codec.METHODS.describe)
        question = codec.encode_validate_config(Dialect.RFC0009, binding="acme/terms", config={})
        await call(channel, codec.METHODS.validate_config, question)
    os.kill(os.getpid(), number)
    await asyncio.wait_for(running, 5)
    assert codec.decode_manifest(answer, registration_name="x") == SERVICES["terms"]().manifest


async def test_flags_that_would_protect_nothing_are_refused(tmp_path: Path) -> None:
    terms = SERVICES["terms"]()
    with pytest.raises(InvalidInput, match="a client CA needs a TLS directory"):
        await run(terms, address="127.0.0.1:0", client_ca=tmp_path)
    with pytest.raises(InvalidInput, match="a trust domain needs a client CA"):
        await run(terms, address="127.0.0.1:0", trust_domain="example.test")
    with pytest.raises(InvalidInput, match="there is no service of that name: terms can be served"):
        await run_service("nothing", address="127.0.0.1:0")

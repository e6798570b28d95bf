"""The conversation with Envoy, message by message, over real gRPC."""

import asyncio
from datetime import timedelta
from typing import Any

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from structlog.testing import capture_logs

from supervisor_middleware.audit.events import Bypassed, Failed
from supervisor_middleware.model.evaluation import ExistingHeader, OnError, RemoveHeader, WriteHeader
from supervisor_middleware.model.revision import Unresolved
from supervisor_middleware.supervisor.exchange import Allowed, Cause, Denied, Overflowed, Unread, Whole
from supervisor_middleware.supervisor.ext_proc import ExtProcServer, ListenFailed
from supervisor_middleware.supervisor.permits import Permits
from tests.fakes.ext_proc_runtime import FakeRuntime, a_stage
from tests.supervisor.ext_proc_caller import NO_GRACE, a_body, a_head, asked, declared, is_untouched, refusal

NAME = "x-openshell-middleware-note"


async def test_no_chain_means_no_body_no_evaluation_and_no_change() -> None:
    async with asked(FakeRuntime()) as it:
        (answer,) = await it.converse(declared(3, host=b"other.example"))
    assert is_untouched(answer)
    assert it.runtime.requests == []


async def test_a_request_without_a_body_is_evaluated_at_once() -> None:
    async with asked(FakeRuntime()) as it:
        (answer,) = await it.converse(a_head(("x-a", b"\xe9"), end=True))
    assert answer.WhichOneof("response") == "request_headers"
    (seen,) = it.runtime.requests
    assert seen.body == Whole(b"")
    assert (seen.context.request_id, seen.context.sandbox_id) == ("request-0", "team/agent")
    assert [h.value for h in seen.headers] == ["\xe9"]


async def test_a_value_that_comes_as_text_is_read_too() -> None:
    message = a_head(end=True)
    message.request_headers.headers.headers.add(key="x-a", value="1")
    async with asked(FakeRuntime()) as it:
        await it.converse(message)
    assert [h.value for h in it.runtime.requests[0].headers] == ["1"]


async def test_a_declared_body_is_held_whole_and_a_chunked_one_in_part() -> None:
    async with asked(FakeRuntime()) as it:
        first, second = await it.converse(declared(3), a_body())
        third, _ = await it.converse(a_head(), a_body())
    assert (first.mode_override.request_body_mode, third.mode_override.request_body_mode) == (2, 3)
    assert second.request_body.response == pb.CommonResponse(header_mutation=pb.HeaderMutation())
    assert [r.body for r in it.runtime.requests] == [Whole(b"abc"), Whole(b"abc")]


async def test_a_new_body_gets_a_new_length_only_where_one_was_declared() -> None:
    async with asked(FakeRuntime(answer=lambda _: Allowed(body=b"longer"))) as it:
        _, with_length = await it.converse(declared(3), a_body())
        _, chunked = await it.converse(a_head(), a_body())
    assert with_length.request_body.response.body_mutation.body == b"longer"
    (length,) = with_length.request_body.response.header_mutation.set_headers
    assert (length.header.key, length.header.raw_value) == ("content-length", b"6")
    assert chunked.request_body.response.body_mutation.body == b"longer"
    assert not chunked.request_body.response.header_mutation.set_headers


async def test_an_empty_new_body_is_not_the_old_one() -> None:
    async with asked(FakeRuntime(answer=lambda _: Allowed(body=b""))) as it:
        _, answer = await it.converse(declared(3), a_body())
    assert answer.request_body.response.HasField("body_mutation")


async def test_mutations_are_sent_as_their_final_effect() -> None:
    mutations = (
        WriteHeader(name=NAME, value="1", on_existing=ExistingHeader.OVERWRITE),
        RemoveHeader(name="x-gone"),
        RemoveHeader(name="x-never-there"),
        WriteHeader(name=NAME, value="", on_existing=ExistingHeader.APPEND),
        WriteHeader(name=NAME, value="3", on_existing=ExistingHeader.SKIP),
    )
    async with asked(FakeRuntime(answer=lambda _: Allowed(mutations=mutations))) as it:
        (answer,) = await it.converse(a_head((NAME, b"0"), ("x-gone", b"1"), ("x-gone", b"2"), end=True))
    mutation = answer.request_headers.response.header_mutation
    assert list(mutation.remove_headers) == ["x-gone", NAME]
    assert [(o.header.key, o.header.raw_value) for o in mutation.set_headers] == [(NAME, b"1"), (NAME, b"")]
    assert all(o.append.value and o.keep_empty_value for o in mutation.set_headers)


async def test_a_denial_holds_platform_words_only() -> None:
    denied = Denied(
        cause=Cause.DENIED, key="a b/c", policy="team/policy", reason_code="pii", metadata={"k": {"x": "canary"}}
    )
    async with asked(FakeRuntime(answer=lambda _: denied)) as it:
        (answer,) = await it.converse(a_head(end=True))
    status, body = refusal(answer)
    assert status == 403
    assert body == {
        "error": "middleware_denied",
        "detail": "middleware_denied:a_b_c:pii",
        "policy": "team/policy",
        "middleware": "a b/c",
        "reason_code": "pii",
    }
    assert "secret" not in str(answer)


async def test_never_configured_is_503() -> None:
    async with asked(FakeRuntime(stages=None)) as it:
        (answer,) = await it.converse(a_head())
    status, body = refusal(answer)
    assert (status, body["error"]) == (503, "supervisor_not_configured")


@pytest.mark.parametrize("host", [b"", b"user@api.example.com", b"a b"])
async def test_an_unmatchable_host_is_refused_even_without_any_stage(host: bytes) -> None:
    async with asked(FakeRuntime(stages=())) as it:
        (answer,) = await it.converse(a_head(host=host, end=True))
    assert refusal(answer)[0] == 403


async def test_a_declared_length_over_the_cap_is_never_asked_for() -> None:
    async with asked(FakeRuntime(stages=(a_stage(max_body_bytes=4, on_error=OnError.FAIL_OPEN),))) as it:
        (answer,) = await it.converse(declared(5))
    assert answer.mode_override.request_body_mode == 0
    assert it.runtime.requests[0].body == Unread(5)
    assert [type(e) for e in it.events] == [Bypassed]


@pytest.mark.parametrize("body", [a_body(b"12345"), a_body(b"1234", end=False)], ids=["too long", "not the end"])
async def test_a_body_that_overflows_is_always_refused(body: Any) -> None:
    async with asked(FakeRuntime(stages=(a_stage(max_body_bytes=4, on_error=OnError.FAIL_OPEN),))) as it:
        _, answer = await it.converse(a_head(), body)
    assert refusal(answer)[0] == 403
    assert it.runtime.requests[0].body == Overflowed()
    assert [type(e) for e in it.events] == [Failed]


async def test_a_chain_that_cannot_run_reads_no_body() -> None:
    async with asked(FakeRuntime(stages=(a_stage(unresolved=next(iter(Unresolved))),))) as it:
        (answer,) = await it.converse(a_head())
    assert refusal(answer)[0] == 403
    assert it.runtime.requests[0].body == Unread(0)


async def test_connect_is_judged_over_the_whole_chain() -> None:
    is_open, is_closed = a_stage(on_error=OnError.FAIL_OPEN), a_stage("b")
    async with asked(FakeRuntime(stages=(is_open,))) as it:
        (passed,) = await it.converse(a_head(method=b"CONNECT"))
        it.runtime.stages = (is_open, is_closed)
        (refused,) = await it.converse(a_head(method=b"CONNECT"))
    assert passed.WhichOneof("response") == "request_headers"
    assert refusal(refused)[1]["middleware"] == "b"
    assert it.runtime.requests == []


async def test_a_handshake_cannot_be_given_a_body() -> None:
    upgrade = (("connection", b"upgrade"), ("upgrade", b"websocket"))
    async with asked(FakeRuntime(answer=lambda _: Allowed(body=b"x"))) as it:
        (answer,) = await it.converse(a_head(*upgrade, method=b"GET"))
    assert refusal(answer)[0] == 403
    assert it.events == []


@pytest.mark.parametrize(
    "message",
    [pb.ProcessingRequest(), a_body(), pb.ProcessingRequest(request_trailers=pb.HttpTrailers())],
    ids=["unknown", "body first", "trailers first"],
)
async def test_a_conversation_that_does_not_begin_with_a_head_is_refused(message: Any) -> None:
    async with asked(FakeRuntime(stages=())) as it:
        (answer,) = await it.converse(message)
    assert refusal(answer)[0] == 403


@pytest.mark.parametrize("second", [a_head(), pb.ProcessingRequest(), pb.ProcessingRequest(request_trailers={})])
async def test_anything_but_the_body_where_one_was_asked_for_is_refused(second: Any) -> None:
    async with asked(FakeRuntime()) as it:
        _, answer = await it.converse(declared(3), second)
    assert refusal(answer)[0] == 403
    assert it.runtime.requests == []
    assert it.runtime.pinned == 0


async def test_a_stream_that_ends_before_the_body_is_never_a_clean_end_without_an_answer() -> None:
    async with asked(FakeRuntime()) as it:
        call = it.stub.Process()
        await call.write(declared(3))
        await it.answer(call)
        await call.done_writing()
        assert refusal(await it.answer(call))[0] == 403
    assert it.runtime.pinned == 0


async def test_a_body_that_never_comes_is_refused() -> None:
    async with asked(FakeRuntime(), body_patience=timedelta(milliseconds=20)) as it:
        call = it.stub.Process()
        await call.write(declared(3))
        await it.answer(call)
        assert refusal(await it.answer(call))[0] == 403


async def test_response_phases_go_on_unchanged() -> None:
    message = pb.ProcessingRequest(response_headers=pb.HttpHeaders())
    async with asked(FakeRuntime()) as it:
        first, second = await it.converse(message, pb.ProcessingRequest(response_body=pb.HttpBody()))
    assert first.WhichOneof("response") == "response_headers"
    assert second.WhichOneof("response") == "response_body"


async def test_a_chain_that_raises_is_a_refusal_without_its_words() -> None:
    def broken(_: object) -> Allowed:
        raise RuntimeError("canary")

    with capture_logs() as logs:
        async with asked(FakeRuntime(answer=broken)) as it:
            (answer,) = await it.converse(a_head(end=True))
    assert refusal(answer)[1]["error"] == "middleware_failed"
    assert "canary" not in f"{answer}{logs}"
    assert [log["error"].partition(" ")[0] for log in logs] == ["RuntimeError"]


async def test_a_request_that_cannot_be_audited_is_refused() -> None:
    def broken(_: object) -> None:
        raise OSError

    async with asked(FakeRuntime(), record=broken) as it:
        (answer,) = await it.converse(a_head(end=True))
    assert refusal(answer)[0] == 403


async def test_beyond_all_permits_a_request_is_refused_before_its_body_is_asked_for() -> None:
    runtime = FakeRuntime(gate=asyncio.Event())
    async with asked(runtime, permits=Permits(active=1, waiting=0)) as it:
        busy = asyncio.create_task(it.converse(a_head(end=True)))
        while not runtime.requests:  # noqa: ASYNC110 - the other end of a socket
            await asyncio.sleep(0)
        (answer,) = await it.converse(declared(3))
        (unseen,) = await it.converse(a_head(host=b"other.example"))
        assert runtime.gate is not None
        runtime.gate.set()
        await busy
    status, body = refusal(answer)
    assert (status, body["error"]) == (503, "middleware_failed")
    assert is_untouched(unseen)


async def test_a_caller_that_leaves_cancels_the_evaluation_and_unpins() -> None:
    runtime = FakeRuntime(gate=asyncio.Event())
    async with asked(runtime) as it:
        call = it.stub.Process()
        await call.write(a_head(end=True))
        while not runtime.requests:  # noqa: ASYNC110 - the other end of a socket
            await asyncio.sleep(0)
        call.cancel()
        async with asyncio.timeout(5):
            while runtime.pinned:  # noqa: ASYNC110 - the other end of a socket
                await asyncio.sleep(0)
    assert runtime.cancelled == 1


async def test_stopping_ends_what_is_in_flight_with_an_error() -> None:
    runtime = FakeRuntime(gate=asyncio.Event())
    async with asked(runtime) as it:
        call = it.stub.Process()
        await call.write(a_head(end=True))
        while not runtime.requests:  # noqa: ASYNC110 - the other end of a socket
            await asyncio.sleep(0)
        await it.server.stop(NO_GRACE)
        assert await call.code() is not grpc.StatusCode.OK


async def test_an_address_that_is_taken_is_said() -> None:
    async with asked(FakeRuntime()) as it:
        with pytest.raises(ListenFailed):
            await ExtProcServer(it.server._processor, address=it.address).start()

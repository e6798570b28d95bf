"""The admission webhook as the API server meets it: aiohttp over TLS, reviews in, reviews out."""

import asyncio
import contextlib
import gzip
import io
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from structlog.testing import capture_logs
from yarl import URL

from supervisor_middleware.apps.health import port_of
from supervisor_middleware.apps.webhook_service import server_context
from supervisor_middleware.control.doubts import Doubts
from supervisor_middleware.control.reviews import parse_review
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.manifest import Dialect
from supervisor_middleware.model.registration import Connection
from supervisor_middleware.model.settings import Disclosure
from supervisor_middleware.model.snapshot import Snapshot
from supervisor_middleware.model.verdict import Accepted, Described, Description, Verdict
from supervisor_middleware.pki.credential_files import write_credentials
from supervisor_middleware.registry.catalog import Catalog
from supervisor_middleware.registry.inquiry import Inquirer, Turns
from supervisor_middleware.telemetry import ControlMetrics
from supervisor_middleware.webhook import PATH, Clients, Limits, Webhook, serve
from supervisor_middleware.webhook.limits import MAX_REVIEW_BYTES
from tests.builders import a_manifest, some_settings
from tests.control.admission_world import admission_review, read_world
from tests.pki.builders import an_authority
from tests.waiting import eventually

NOW: Final = datetime.now(UTC)
AUTHORITY: Final = an_authority(now=NOW)
WORLD: Final = {"registrations": {"acme": {"bindings": ["acme/redactor"]}}}


class FakeServices:
    """One service, which may be slow."""

    def __init__(self) -> None:
        self.delay = 0.0
        self.silent: set[str] = set()
        """Bindings of services that never answer."""
        self.asked = 0
        self.configs: list[JsonObject] = []

    async def describe(self, connection: Connection, *, registration_name: str) -> Description:
        return Described(a_manifest())

    async def validate_config(
        self, connection: Connection, *, dialect: Dialect, binding: str, config: JsonObject, deadline: timedelta
    ) -> Verdict:
        self.asked += 1
        self.configs.append(config)
        await asyncio.sleep(60 if binding in self.silent else self.delay)
        return Accepted()

    def forget(self, keep: frozenset[Connection]) -> None:
        pass


class FakeSource:
    def __init__(self) -> None:
        self.current: Snapshot = read_world(WORLD)
        self.error: Exception | None = None
        self.delay = 0.0

    async def snapshot(self) -> Snapshot:
        await asyncio.sleep(self.delay)
        if self.error is not None:
            raise self.error
        return self.current


class FakeLive:
    """What the cluster really holds, beside what the cache shows; None: the same."""

    def __init__(self) -> None:
        self.looks: list[Doubts] = []
        self.current: Snapshot | None = None
        self.error: Exception | None = None
        self.delay = 0.0

    async def updated(self, snapshot: Snapshot, doubts: Doubts) -> Snapshot:
        self.looks.append(doubts)
        await asyncio.sleep(self.delay)
        if self.error is not None:
            raise self.error
        return snapshot if self.current is None else self.current


class Served:
    """The webhook and a client of it."""

    def __init__(self, *, disclosure: Disclosure = Disclosure.NAMES, deadline: timedelta) -> None:
        self.live = FakeLive()
        self.source, self.services, self.metrics, self.catalog = (
            FakeSource(),
            FakeServices(),
            ControlMetrics(),
            Catalog(),
        )
        self.webhook = Webhook(
            source=self.source,
            catalog=self.catalog,
            asker=Inquirer(self.services, {}, turns=Turns(at_once=4)),
            settings=some_settings(),
            now=lambda: NOW,
            deadline=deadline,
            disclosure=disclosure,
            live=self.live,
        )
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.session: aiohttp.ClientSession
        self.url = ""

    async def post(self, data: bytes, *, method: str = "POST") -> tuple[int, Any]:
        async with self.session.request(method, self.url, data=io.BytesIO(data)) as response:
            text = await response.text()
            return response.status, json.loads(text) if text.startswith("{") else text

    async def review(self, obj: Any, **request: Any) -> Any:
        body = admission_review({"operation": "CREATE", "object": obj, **request})
        status, answer = await self.post(json.dumps(body).encode())
        assert status == 200
        assert answer["kind"] == "AdmissionReview"
        assert answer["response"]["uid"] == "review-1"
        return answer["response"]


@asynccontextmanager
async def a_webhook(
    folder: Path,
    *,
    deadline: timedelta = timedelta(seconds=5),
    limits: Limits | None = None,
    disclosure: Disclosure = Disclosure.NAMES,
) -> AsyncIterator[Served]:
    served = Served(deadline=deadline, disclosure=disclosure)
    load_new_certificate(served.tls, folder)
    runner = await serve(
        served.webhook,
        host="127.0.0.1",
        port=0,
        tls=served.tls,
        metrics=served.metrics,
        now=lambda: NOW,
        limits=limits,
    )
    served.url = f"https://127.0.0.1:{port_of(runner)}{PATH}"
    theirs = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=theirs)) as served.session:
            yield served
            # TLS connections close over several turns of the loop.
            await served.session.close()
            await asyncio.sleep(0.01)
    finally:
        await runner.cleanup()


def a_policy(*, middleware: str = "acme/redactor", count: int = 1, **entry: Any) -> dict[str, Any]:
    entries = {
        f"e{n}": {"middleware": middleware, "order": n, "endpoints": {"include": ["*.example.com"]}, **entry}
        for n in range(count)
    }
    metadata = {"name": "redaction", "namespace": "team-a"}
    return {
        "kind": "SandboxPolicy",
        "metadata": metadata,
        "spec": {"sandboxSelector": {}, "networkMiddlewares": entries},
    }


async def test_a_valid_policy_is_allowed_and_measured(tmp_path: Path) -> None:
    async with a_webhook(tmp_path) as served:
        assert await served.review(a_policy()) == {"uid": "review-1", "allowed": True}
        assert served.services.asked == 1
        text = served.metrics.render().decode()
    assert 'admission_review_duration_seconds_count{kind="SandboxPolicy",outcome="allowed"} 1.0' in text


async def test_an_invalid_policy_is_refused_with_everything_that_is_wrong(tmp_path: Path) -> None:
    async with a_webhook(tmp_path) as served:
        response = await served.review(a_policy(middleware="acme/other", count=3))
    assert not response["allowed"]
    assert len(response["status"]["details"]["causes"]) == 3


async def test_a_yes_is_remembered(tmp_path: Path) -> None:
    async with a_webhook(tmp_path) as served:
        for _ in range(3):
            assert (await served.review(a_policy()))["allowed"]
        assert served.services.asked == 1


async def test_what_was_never_stored_is_forgotten_in_time(tmp_path: Path) -> None:
    async with a_webhook(tmp_path) as served:
        for number in range(1010):
            review = admission_review({"operation": "CREATE", "object": a_policy(config={"n": number})})
            await served.webhook.answer(parse_review(review, now=NOW))
        assert len(served.catalog.verdicts) == 1000


async def test_an_object_of_more_than_two_mebibytes_is_answered(tmp_path: Path) -> None:
    big = a_policy(config={"filler": "canary" * 400_000})
    async with a_webhook(tmp_path) as served:
        response = await served.review(big, operation="UPDATE", oldObject=a_policy())
        assert response["status"]["details"]["causes"][0]["reason"] == "TooLarge"
        assert served.services.asked == 0


@pytest.mark.parametrize(
    "data",
    [b"", b"no json", b"{", b"[1]", b'{"request": 1}', b"[" * 100_000, b"\xff\xfe", b"1" * 5000, b'"\\ud800"'],
    ids=["nothing", "text", "cut", "a list", "no request", "deep", "no UTF-8", "a long number", "a surrogate"],
)
async def test_what_is_no_review_is_a_bad_request_and_the_server_goes_on(data: bytes, tmp_path: Path) -> None:
    async with a_webhook(tmp_path) as served:
        with capture_logs() as logs:
            status, _ = await served.post(data)
        assert status == 400
        assert logs == []
        assert (await served.review(a_policy()))["allowed"]


async def test_only_posts_are_taken(tmp_path: Path) -> None:
    async with a_webhook(tmp_path) as served:
        assert (await served.post(b"", method="GET"))[0] == 405


async def test_a_deletion_is_allowed_whatever_is_broken(tmp_path: Path) -> None:
    async with a_webhook(tmp_path) as served:
        response = await served.review(None, operation="DELETE", oldObject=a_policy(middleware="acme/other"))
    assert response["allowed"]


async def test_a_slow_service_is_named_within_the_deadline(tmp_path: Path) -> None:
    async with a_webhook(tmp_path, deadline=timedelta(seconds=0.2)) as served:
        served.services.delay = 60
        began = time.monotonic()
        response = await served.review(a_policy(count=10))
        assert time.monotonic() - began < 2
    assert response["status"]["code"] == 503
    assert "service acme could not be asked" in response["status"]["message"]
    assert len(response["status"]["details"]["causes"]) == 10


async def test_a_source_that_hangs_is_not_waited_for_longer_than_the_api_server_waits(tmp_path: Path) -> None:
    async with a_webhook(tmp_path, deadline=timedelta(seconds=0.01)) as served:
        served.source.delay = 60
        response = await served.review(a_policy())
    assert not response["allowed"]


@pytest.mark.parametrize(
    "error", [Unavailable("the cache is empty"), ZeroDivisionError("canary")], ids=["unavailable", "a bug"]
)
async def test_what_cannot_be_judged_is_refused_and_may_be_tried_again(error: Exception, tmp_path: Path) -> None:
    async with a_webhook(tmp_path) as served:
        served.source.error = error
        with capture_logs() as logs:
            response = await served.review(a_policy())
        assert (response["allowed"], response["status"]["code"]) == (False, 503)
        assert "canary" not in str(response) + str(logs)
        assert [log["event"] for log in logs] == ["a review could not be judged", "reviewed"]
        served.source.error = None
        assert (await served.review(a_policy()))["allowed"]


async def test_many_reviews_at_once_share_a_slow_service_and_all_are_answered(tmp_path: Path) -> None:
    async with a_webhook(tmp_path) as served:
        served.services.delay = 0.05
        policies = [a_policy(config={"n": number}) for number in range(60)]
        began = time.monotonic()
        responses = await asyncio.gather(*(served.review(p) for p in policies))
        assert time.monotonic() - began < 4
    assert all(r["allowed"] for r in responses)


async def test_reviews_of_one_silent_service_hold_back_none_of_another(tmp_path: Path) -> None:
    async with a_webhook(tmp_path, deadline=timedelta(seconds=30)) as served:
        served.source.current = read_world(
            {"registrations": {"acme": {"bindings": ["acme/redactor"]}, "other": {"bindings": ["other/redactor"]}}}
        )
        served.services.silent = {"acme/redactor"}
        stuck = [asyncio.create_task(served.review(a_policy(config={"n": n}))) for n in range(30)]
        await eventually(lambda: served.services.asked)
        for number in range(3):
            assert (await served.review(a_policy(middleware="other/redactor", config={"n": number})))["allowed"]
        assert not any(task.done() for task in stuck)
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)


async def test_no_value_of_an_object_reaches_a_log(tmp_path: Path) -> None:
    async with a_webhook(tmp_path) as served:
        with capture_logs() as logs:
            await served.review(a_policy(config={"secret": "canary"}))
            await served.review(a_policy(middleware="canary/x", config={"secret": "canary"}))
            await served.review(a_policy(config={"secret": ["canary", 9007199254740993]}))
        assert served.services.configs == [{"secret": "canary"}]
    assert len(logs) == 3
    assert "canary" not in str(logs)


async def test_a_renewed_certificate_is_used_for_new_connections(tmp_path: Path) -> None:
    async with a_webhook(tmp_path) as served:
        before = await serial_number(served, tmp_path)
        assert (await served.review(a_policy()))["allowed"]
        load_new_certificate(served.tls, tmp_path)
        assert await serial_number(served, tmp_path) != before
        assert (await served.review(a_policy()))["allowed"]


def load_new_certificate(tls: ssl.SSLContext, folder: Path) -> None:
    write_credentials(folder, AUTHORITY.issue_server(ip_addresses=[ip_address("127.0.0.1")], now=NOW))
    tls.load_cert_chain(folder / "tls.crt", folder / "tls.key")


async def serial_number(served: Served, folder: Path) -> str:
    theirs = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    reader, writer = await asyncio.open_connection("127.0.0.1", URL(served.url).port, ssl=theirs)
    certificate = writer.get_extra_info("peercert")
    writer.close()
    await writer.wait_closed()
    del reader
    return str(certificate["serialNumber"])


async def test_reviews_of_registrations_dial_nobody(tmp_path: Path) -> None:
    spec = {"grpcEndpoint": "https://new.svc", "maxBodyBytes": 1}
    async with a_webhook(tmp_path) as served:
        obj = {"kind": "SupervisorMiddleware", "metadata": {"name": "new"}, "spec": spec}
        assert (await served.review(obj))["allowed"]
        assert served.services.asked == 0


# ------------------------------------------------------------------------------------------- a live look before a refusal


CONFLICT: Final = {
    "registrations": {"acme": {"bindings": ["acme/redactor"]}},
    "policies": {"older": {"spec": a_policy()["spec"], "daysOld": 1}},
    "sandboxes": {"coder": {}},
}


async def test_a_registration_that_the_cache_does_not_show_yet_is_read_before_a_refusal(tmp_path: Path) -> None:
    async with a_webhook(tmp_path) as served:
        served.source.current = read_world({})
        assert not (await served.review(a_policy()))["allowed"]
        served.live.current = read_world(WORLD)
        assert (await served.review(a_policy()))["allowed"]
        assert served.services.asked == 1, "the binding that was found is asked about"
    assert {d.registrations for d in served.live.looks} == {True}


async def test_a_conflict_with_a_policy_that_is_gone_by_now_is_none(tmp_path: Path) -> None:
    async with a_webhook(tmp_path) as served:
        served.source.current = read_world(CONFLICT)
        refused = await served.review(a_policy())
        assert {c["reason"] for c in refused["status"]["details"]["causes"]} == {"Conflicted"}
        served.live.current = read_world({**CONFLICT, "policies": {}})
        assert (await served.review(a_policy()))["allowed"]
    assert {(d.registrations, tuple(map(str, d.policies))) for d in served.live.looks} == {
        (False, ("SandboxPolicy team-a/older",))
    }


async def test_what_is_found_may_conflict_and_that_is_looked_at_too(tmp_path: Path) -> None:
    async with a_webhook(tmp_path) as served:
        served.source.current = read_world({**CONFLICT, "registrations": {}, "policies": {}})
        served.live.current = read_world(CONFLICT)
        assert not (await served.review(a_policy()))["allowed"]
        assert [d.registrations for d in served.live.looks] == [True, False]


@pytest.mark.parametrize("broken", ["down", "slow"])
async def test_a_refusal_stands_if_nobody_can_be_asked(broken: str, tmp_path: Path) -> None:
    async with a_webhook(tmp_path) as served:
        served.source.current = read_world({})
        served.live.error = Unavailable("down") if broken == "down" else None
        served.live.delay = 60 if broken == "slow" else 0
        response = await served.review(a_policy())
        assert response["status"]["code"] == 422


@pytest.mark.parametrize(
    "policy",
    [a_policy(middleware="openshell/none"), a_policy(config={"filler": "x" * 70_000})],
    ids=["no such built-in", "too large"],
)
async def test_nobody_is_asked_about_what_no_other_object_could_mend(policy: dict[str, Any], tmp_path: Path) -> None:
    async with a_webhook(tmp_path) as served:
        assert not (await served.review(policy))["allowed"]
        assert served.live.looks == []


# ----------------------------------------------------------------------------------------------------------------- limits


async def test_too_many_reviews_at_once_are_put_off_at_once_and_only_they(tmp_path: Path) -> None:
    async with a_webhook(tmp_path, limits=Limits(reviews=2)) as served:
        served.services.delay = 0.5
        first = [asyncio.create_task(served.review(a_policy(config={"n": n}))) for n in range(2)]
        await eventually(lambda: served.services.asked == 2)
        body = json.dumps(admission_review({"operation": "CREATE", "object": a_policy()})).encode()
        async with served.session.post(served.url, data=body) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "1")
        assert all(r["allowed"] for r in await asyncio.gather(*first))
        served.services.delay = 0
        assert (await served.review(a_policy()))["allowed"]
        assert "admission_busy_total 1.0" in served.metrics.render().decode()


async def test_bytes_in_hand_are_bounded_also_where_nobody_says_how_many_come(tmp_path: Path) -> None:
    limits = Limits(held_bytes=MAX_REVIEW_BYTES)
    async with a_webhook(tmp_path, limits=limits) as served:
        served.services.delay = 0.5
        body = json.dumps(admission_review({"operation": "CREATE", "object": a_policy()})).encode()

        async def chunks() -> AsyncIterator[bytes]:
            yield body

        unsized = asyncio.create_task(served.session.post(served.url, data=chunks()))
        await eventually(lambda: served.services.asked == 1)
        assert (await served.post(body))[0] == 429
        (await unsized).release()
        assert (await served.post(body))[0] == 200


async def test_more_than_a_review_can_hold_is_refused_unread(tmp_path: Path) -> None:
    async with a_webhook(tmp_path) as served:
        status, _ = await served.post(b"x" * (MAX_REVIEW_BYTES + 1))
        assert status == 413


async def test_a_compressed_body_is_not_unpacked(tmp_path: Path) -> None:
    async with a_webhook(tmp_path) as served:
        bomb = gzip.compress(b" " * MAX_REVIEW_BYTES)
        async with served.session.post(
            served.url, data=bomb, headers={"Content-Encoding": "gzip"}, skip_auto_headers=["Accept-Encoding"]
        ) as response:
            assert response.status == 400


async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    async with a_webhook(tmp_path, limits=Limits(read_seconds=0.05)) as served:
        reader, writer = await connect(served, tmp_path)
        writer.write(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
        await writer.drain()
        assert b" 408 " in await reader.readline()
        await close(writer)


async def test_a_silent_connection_ends(tmp_path: Path) -> None:
    async with a_webhook(tmp_path, limits=Limits(silence_seconds=1)) as served:
        reader, writer = await connect(served, tmp_path)
        assert await reader.read() == b""
        await close(writer)
        assert (await served.review(a_policy()))["allowed"]


def test_connections_that_the_api_server_keeps_unused_are_not_ended_under_it() -> None:
    assert Limits().silence_seconds > 90


async def test_one_connection_too_many_ends_and_the_others_go_on(tmp_path: Path) -> None:
    async with a_webhook(tmp_path, limits=Limits(connections=1)) as served:
        assert (await served.review(a_policy()))["allowed"]
        reader, writer = await connect(served, tmp_path)
        assert await reader.read() == b""
        await close(writer)
        assert (await served.review(a_policy()))["allowed"]


# -------------------------------------------------------------------------------------------------- who may ask, and learn


async def test_only_the_api_servers_certificate_is_heard(tmp_path: Path) -> None:
    theirs, mine = an_authority(now=NOW), tmp_path / "client"
    for folder, name in (("client", "kube-apiserver.example"), ("other", "somebody.example")):
        write_credentials(tmp_path / folder, theirs.issue_operator(namespace="x", dns_names=[name], now=NOW))
    tls = server_context(mine / "ca.crt")
    load_new_certificate(tls, tmp_path)
    served = Served(deadline=timedelta(seconds=5))
    runner = await serve(
        served.webhook,
        host="127.0.0.1",
        port=0,
        tls=tls,
        metrics=served.metrics,
        now=lambda: NOW,
        clients=Clients(names=frozenset({"kube-apiserver.example"})),
    )
    served.url = f"https://127.0.0.1:{port_of(runner)}{PATH}"
    body = json.dumps(admission_review({"operation": "CREATE", "object": a_policy()})).encode()

    async def ask(folder: str | None) -> int:
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        if folder is not None:
            context.load_cert_chain(tmp_path / folder / "tls.crt", tmp_path / folder / "tls.key")
        connector = aiohttp.TCPConnector(ssl=context, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as served.session:
            status, _ = await served.post(body)
            await asyncio.sleep(0.01)
            return status

    try:
        with pytest.raises(aiohttp.ClientError):
            await ask(None)
        assert await ask("other") == 403
        assert await ask("client") == 200
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("disclosure", Disclosure)
async def test_other_tenants_are_named_or_counted_as_the_administrator_says(
    tmp_path: Path, disclosure: Disclosure
) -> None:
    world = {
        **CONFLICT,
        "policies": {"secret": {"namespace": "team-z", "spec": a_policy()["spec"], "daysOld": 1}},
        "sandboxes": {"team-z/coder": {}},
        "namespaces": {"team-z": {}},
        "readyEndpoints": {"acme": 1},
    }
    spec = {**a_policy()["spec"], "namespaceSelector": {}}
    del spec["sandboxSelector"]
    skip = {"db": {"endpoints": [{"host": "x.example.com", "port": 1, "tls": "skip"}]}}
    spec["networkMiddlewares"]["e0"]["endpoints"] = {"include": ["other.test"]}
    baseline = {
        "kind": "ClusterSandboxPolicy",
        "metadata": {"name": "platform"},
        "spec": {**spec, "networkPolicies": skip},
    }
    async with a_webhook(tmp_path, disclosure=disclosure) as served:
        served.source.current = read_world(world)
        response = await served.review(baseline, namespace=None)
    text = json.dumps(response)
    assert response["allowed"], text
    assert "1 of the tenants' policies" in text
    assert ("fewer than 2 ready endpoints" in text) is (disclosure is Disclosure.COUNTS)
    assert ("team-z/secret" in text) is (disclosure is Disclosure.NAMES)


async def connect(served: Served, folder: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    theirs = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    return await asyncio.open_connection("127.0.0.1", URL(served.url).port, ssl=theirs)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()

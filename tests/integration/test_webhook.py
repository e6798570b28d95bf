"""The admission webhook as the API server meets it: aiohttp over TLS, reviews in, reviews out."""

import asyncio
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
from supervisor_middleware.control.doubts import Doubts
from supervisor_middleware.control.reviews import parse_review
from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.manifest import Dialect
from supervisor_middleware.model.registration import Connection
from supervisor_middleware.model.snapshot import Snapshot
from supervisor_middleware.model.verdict import Accepted, Described, Description, Verdict
from supervisor_middleware.pki.credential_files import write_credentials
from supervisor_middleware.registry.catalog import Catalog
from supervisor_middleware.registry.inquiry import Inquirer, Turns
from supervisor_middleware.telemetry import ControlMetrics
from supervisor_middleware.webhook import PATH, Limits, Webhook, serve
from tests.builders import a_manifest, some_settings
from tests.control.admission_world import admission_review, read_world
from tests.pki.builders import an_authority

NOW: Final = datetime.now(UTC)
AUTHORITY: Final = an_authority(now=NOW)
WORLD: Final = {"registrations": {"acme": {"bindings": ["acme/redactor"]}}}


class FakeServices:
    """One service, which may be slow."""

    def __init__(self) -> None:
        self.delay = 0.0
        self.asked = 0
        self.configs: list[JsonObject] = []

    async def describe(self, connection: Connection, *, registration_name: str) -> Description:
        return Described(a_manifest())

    async def validate_config(
        self, connection: Connection, *, dialect: Dialect, binding: str, config: JsonObject, deadline: timedelta
    ) -> Verdict:
        self.asked += 1
        self.configs.append(config)
        await asyncio.sleep(self.delay)
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

    def __init__(self, *, deadline: timedelta) -> None:
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
    folder: Path, *, deadline: timedelta = timedelta(seconds=5), limits: Limits | None = None
) -> AsyncIterator[Served]:
    served = Served(deadline=deadline)
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

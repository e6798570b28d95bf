"""Endpoints behind a registration's Service: counted where it is a Service, and known or not."""

from collections.abc import AsyncIterator

import pytest

from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.canonical import ParsedJson
from supervisor_middleware.sources.cluster_endpoints import EndpointCache


class Slices:
    """An API server that holds the EndpointSlices of one Service."""

    def __init__(self, *endpoints: ParsedJson) -> None:
        self.endpoints, self.asked, self.is_down = endpoints, list[tuple[str, str]](), False

    async def pages(self, path: str, *, selector: str = "") -> AsyncIterator[ParsedJson]:
        self.asked.append((path, selector))
        if self.is_down:
            raise Unavailable("down")
        for endpoint in self.endpoints:
            yield {"items": [{"endpoints": [endpoint]}]}
        yield {"items": [{"endpoints": None}]}
        yield {}


def an_endpoint(*, ready: bool | None = None, addresses: int = 1) -> ParsedJson:
    return {"addresses": ["10.0.0.1"] * addresses, "conditions": {} if ready is None else {"ready": ready}}


async def test_ready_endpoints_of_every_slice_are_counted() -> None:
    slices = Slices(an_endpoint(), an_endpoint(ready=True), an_endpoint(ready=False), an_endpoint(addresses=0))
    cache = EndpointCache(slices)
    await cache.refresh(["https://terms.middleware.svc:8443"] * 2)
    assert cache.ready == {"https://terms.middleware.svc:8443": 2}
    assert slices.asked == [
        (
            "/apis/discovery.k8s.io/v1/namespaces/middleware/endpointslices",
            "kubernetes.io/service-name=terms",
        )
    ]


@pytest.mark.parametrize(
    "endpoint", ["https://terms.middleware.svc.cluster.local", "https://Terms.Middleware.svc:8443/"]
)
async def test_a_service_is_known_by_any_of_its_names(endpoint: str) -> None:
    cache = EndpointCache(Slices(an_endpoint()))
    await cache.refresh([endpoint])
    assert cache.ready == {endpoint: 1}


@pytest.mark.parametrize(
    "endpoint",
    ["https://terms.example.com", "https://10.0.0.1:8443", "https://a.b.c.svc", "https://te/rms.x.svc", "None", ""],
)
async def test_nobody_is_asked_about_anything_else(endpoint: str) -> None:
    slices = Slices(an_endpoint())
    cache = EndpointCache(slices)
    await cache.refresh([endpoint])
    assert (cache.ready, slices.asked) == ({}, [])


async def test_what_cannot_be_told_is_left_out() -> None:
    slices = Slices(an_endpoint())
    cache = EndpointCache(slices)
    await cache.refresh(["https://terms.middleware.svc"])
    slices.is_down = True
    await cache.refresh(["https://terms.middleware.svc"])
    assert cache.ready == {}

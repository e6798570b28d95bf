"""The self-test: only a refusal of the very policy that was sent counts."""

from typing import Any

import pytest

from supervisor_middleware.errors import Unavailable
from supervisor_middleware.sources.cluster_api import Forbidden, Refused
from supervisor_middleware.sources.cluster_probe import WebhookProbe


class FakeApi:
    def __init__(self, answer: Exception | None) -> None:
        self.answer = answer
        self.sent: list[tuple[str, dict[str, Any]]] = []

    async def rehearse(self, path: str, body: dict[str, Any]) -> None:
        self.sent.append((path, body))
        if self.answer is not None:
            raise self.answer


class Reviewed(FakeApi):
    """Asks our webhook."""

    async def rehearse(self, path: str, body: dict[str, Any]) -> None:
        await super().rehearse(path, body)
        (key,) = body["spec"]["networkMiddlewares"]
        raise Refused("422", fields=frozenset({f"spec.networkMiddlewares.{key}.middleware"}))


def a_probe(api: FakeApi) -> WebhookProbe:
    return WebhookProbe(api, namespace="smw")  # type: ignore[arg-type]


async def test_our_refusal_is_known_by_a_path_that_nobody_could_guess() -> None:
    api = Reviewed(None)
    assert await a_probe(api).problem() is None
    assert await a_probe(api).problem() is None
    (path, first), (_, second) = api.sent
    assert path == "/apis/middleware.openshell.io/v1alpha1/namespaces/smw/sandboxpolicies"
    assert first != second


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "admitted an invalid policy without asking"),
        (Refused("422", fields=frozenset({"spec"})), "somebody else refused the policy"),
        (Refused("422", fields=frozenset()), "somebody else refused the policy"),
        (Forbidden("403"), "grant the operator `create` on sandboxpolicies"),
        (Unavailable("500 InternalError"), "500 InternalError"),
    ],
)
async def test_everything_else_is_a_problem(answer: Exception | None, said: str) -> None:
    assert said in str(await a_probe(FakeApi(answer)).problem())

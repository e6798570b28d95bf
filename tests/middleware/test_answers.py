"""The SDK refuses what a supervisor would refuse, and nothing else."""

from dataclasses import replace

import pytest

from supervisor_middleware.middleware import (
    Decision,
    ExistingHeader,
    FailureCode,
    Result,
    WriteHeader,
    http_binding,
    http_manifest,
)
from supervisor_middleware.middleware.answers import manifest_problems, result_problems
from supervisor_middleware.model.limits import MAX_BODY_BYTES
from supervisor_middleware.model.manifest import Binding, Operation, Phase
from supervisor_middleware.model.violation import Reason
from tests.middleware.builders import ALLOW

C = FailureCode


def write(name: str = "x-openshell-middleware-a", value: str = "") -> WriteHeader:
    return WriteHeader(name=name, value=value, on_existing=ExistingHeader.SKIP)


@pytest.mark.parametrize("max_body_bytes", [100, 2 * MAX_BODY_BYTES])
def test_a_body_is_within_the_bindings_limit_and_the_platforms(max_body_bytes: int) -> None:
    limit = min(max_body_bytes, MAX_BODY_BYTES)
    fits, breaks = (replace(ALLOW, body=b"a" * n) for n in (limit, limit + 1))
    assert list(result_problems(fits, max_body_bytes=max_body_bytes)) == []
    assert list(result_problems(breaks, max_body_bytes=max_body_bytes)) == [C.RESPONSE_BODY_OVER_CAPACITY]


def test_everything_wrong_is_said_at_once() -> None:
    result = Result(decision=Decision.ALLOW, body=b"aa", reason_code="?", mutations=(write(name="x-other"),) * 2)
    assert list(result_problems(result, max_body_bytes=1)) == [
        C.RESPONSE_BODY_OVER_CAPACITY,
        C.REASON_CODE_INVALID,
        C.MUTATION_NAMESPACE,
    ]


def binding(**changes: object) -> Binding:
    return replace(http_binding("acme/a"), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bindings", "part"),
    [
        ((), "1 to 64 bindings are needed, 0 are there"),
        ((binding(),) * 65, "1 to 64 bindings are needed, 65 are there"),
        ((binding(id="a//b"),), "the ID of binding 0 must be"),
        ((binding(id="openshell/mine"),), "openshell/ namespace"),
        ((binding(operation=Operation.WEBSOCKET_MESSAGE),), "another hook than HTTP_REQUEST/PRE_CREDENTIALS"),
        ((binding(phase=Phase.PRE_RETURN),), "another hook than HTTP_REQUEST/PRE_CREDENTIALS"),
        ((binding(max_body_bytes=0),), "advertises 0 body bytes"),
        ((binding(max_body_bytes=4_194_305),), "advertises 4194305 body bytes"),
        ((binding(timeout="9ms"),), "the timeout of binding acme/a must be"),
        ((binding(), binding(timeout="1s")), "acme/a is listed 2 times"),
    ],
)
def test_a_manifest_is_judged_as_the_operator_judges_it(bindings: tuple[Binding, ...], part: str) -> None:
    assert part in next(manifest_problems(http_manifest(*bindings, name="a", version="1")))


def test_the_reserved_namespace_is_for_builtins() -> None:
    manifest = http_manifest(binding(id="openshell/mine"), name="a", version="1")
    assert not list(manifest_problems(manifest, tolerated=frozenset({Reason.RESERVED_NAMESPACE})))

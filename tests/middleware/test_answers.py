"""The SDK refuses what a supervisor would refuse, and nothing else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.middleware import (
    Decision,
    ExistingHeader,
    FailureCode,
    Finding,
    RemoveHeader,
    Result,
    WriteHeader,
    http_binding,
    http_manifest,
)
from supervisor_middleware.middleware.answers import manifest_problems, result_problems
from supervisor_middleware.model.evaluation import HeaderMutation
from supervisor_middleware.model.manifest import Binding, Operation, Phase
from supervisor_middleware.model.violation import Reason
from supervisor_middleware.supervisor.headers import validate
from tests.middleware.builders import ALLOW

C = FailureCode


def write(name: str = "x-openshell-middleware-a", value: str = "") -> WriteHeader:
    return WriteHeader(name=name, value=value, on_existing=ExistingHeader.SKIP)


@pytest.mark.parametrize(
    ("fits", "breaks", "code"),
    [
        (replace(ALLOW, body=b"a" * 100), replace(ALLOW, body=b"a" * 101), C.RESPONSE_BODY_OVER_CAPACITY),
        (replace(ALLOW, reason="é" * 2048), replace(ALLOW, reason="é" * 2049), C.RESPONSE_REASON_OVER_CAPACITY),
        (replace(ALLOW, reason_code="a" * 64), replace(ALLOW, reason_code="a" * 65), C.REASON_CODE_INVALID),
        (
            replace(ALLOW, findings=(Finding(type="a"),) * 32),
            replace(ALLOW, findings=(Finding(type="a"),) * 33),
            C.FINDINGS_OVER_CAPACITY,
        ),
        (
            replace(ALLOW, findings=(Finding(type="a" * 4091),)),
            replace(ALLOW, findings=(Finding(type="a" * 4092),)),
            C.FINDING_OVER_CAPACITY,
        ),
        (
            replace(ALLOW, metadata={str(i): "" for i in range(64)}),
            replace(ALLOW, metadata={str(i): "" for i in range(65)}),
            C.METADATA_COUNT_OVER_CAPACITY,
        ),
        (
            replace(ALLOW, metadata={"a": "b" * 32_767}),
            replace(ALLOW, metadata={"a": "b" * 32_768}),
            C.METADATA_BYTES_OVER_CAPACITY,
        ),
        (
            replace(ALLOW, mutations=(RemoveHeader(name="a"),) * 64),
            replace(ALLOW, mutations=(RemoveHeader(name="a"),) * 65),
            C.MUTATION_COUNT_OVER_CAPACITY,
        ),
        (
            replace(ALLOW, mutations=(write(value="a" * 32_744),)),
            replace(ALLOW, mutations=(write(value="a" * 32_745),)),
            C.MUTATION_BYTES_OVER_CAPACITY,
        ),
        (
            replace(ALLOW, mutations=(RemoveHeader(name="ok"),)),
            replace(ALLOW, mutations=(RemoveHeader(name="not ok"),)),
            C.MUTATION_INVALID_NAME,
        ),
        (
            replace(ALLOW, mutations=(write(name="X-OpenShell-Middleware-A"),)),
            replace(ALLOW, mutations=(write(name="x-other"),)),
            C.MUTATION_NAMESPACE,
        ),
        (
            replace(ALLOW, mutations=(write(value="tab\té"),)),
            replace(ALLOW, mutations=(write(value="line\n"),)),
            C.MUTATION_UNSAFE_VALUE,
        ),
    ],
)
def test_the_limit_passes_and_one_more_does_not(fits: Result, breaks: Result, code: FailureCode) -> None:
    assert list(result_problems(fits, max_body_bytes=100)) == []
    assert list(result_problems(breaks, max_body_bytes=100)) == [code]


def test_everything_wrong_is_said_at_once() -> None:
    result = Result(decision=Decision.ALLOW, body=b"aa", reason_code="?", mutations=(write(name="x-other"),) * 2)
    assert list(result_problems(result, max_body_bytes=1)) == [
        C.RESPONSE_BODY_OVER_CAPACITY,
        C.REASON_CODE_INVALID,
        C.MUTATION_NAMESPACE,
    ]


NAMES = st.sampled_from(["x-openshell-middleware-a", "X-OPENSHELL-MIDDLEWARE-b", "accept", "set-cookie", "a b", ""])
VALUES = st.text(alphabet=st.sampled_from("a \t\n\x00\x7fé\u2028"), max_size=4) | st.just("v" * 20_000)
MUTATIONS: st.SearchStrategy[HeaderMutation] = st.builds(RemoveHeader, name=NAMES) | st.builds(
    WriteHeader, name=NAMES, value=VALUES, on_existing=st.sampled_from(ExistingHeader)
)


@given(st.lists(MUTATIONS, max_size=66).map(tuple))
def test_mutations_are_judged_as_the_supervisor_judges_them(mutations: tuple[HeaderMutation, ...]) -> None:
    verdict = validate(mutations, nominated=frozenset())
    problems = list(result_problems(replace(ALLOW, mutations=mutations), max_body_bytes=1))
    if isinstance(verdict, FailureCode):
        assert verdict in problems
    else:
        assert problems == []


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

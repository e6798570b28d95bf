"""The limits of results: what fits passes, one more does not, and the first breach is the contract's first."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from supervisor_middleware.model.evaluation import (
    Decision,
    ExistingHeader,
    FailureCode,
    Finding,
    HeaderMutation,
    RemoveHeader,
    Result,
    WriteHeader,
)
from supervisor_middleware.model.limits import (
    MAX_FINDING_BYTES,
    MAX_FINDINGS,
    MAX_METADATA_BYTES,
    MAX_METADATA_ENTRIES,
    MAX_MUTATION_DATA_BYTES,
    MAX_MUTATIONS,
    MAX_MUTATIONS_BYTES,
    MAX_REASON_BYTES,
)
from supervisor_middleware.wire.result_limits import (
    WRITE_NAMESPACE,
    answer_breaches,
    mutation_breaches,
    observation_breaches,
)
from supervisor_middleware.wire.sizes import encoded_finding_size, encoded_mutations_size

C = FailureCode
ALLOW = Result(decision=Decision.ALLOW)
REMOVAL = RemoveHeader(name="x-four")


def breaches(result: Result) -> list[FailureCode]:
    return [*answer_breaches(result, max_body_bytes=1000), *mutation_breaches(result.mutations)]


def write(suffix: str = "a", value: str = "v") -> WriteHeader:
    return WriteHeader(name=WRITE_NAMESPACE + suffix, value=value, on_existing=ExistingHeader.SKIP)


def finding_of(size: int) -> Finding:
    finding = Finding(type="t", label="x" * size)
    return replace(finding, label="x" * (2 * size - encoded_finding_size(finding)))


def data_of(size: int) -> tuple[HeaderMutation, ...]:
    """Mutations whose names and values are `size` bytes together."""
    return (REMOVAL, write(value="v" * (size - len(REMOVAL.name) - len(WRITE_NAMESPACE) - 1)))


LIMITS: list[tuple[Callable[[int], Result], int, FailureCode]] = [
    (lambda n: replace(ALLOW, body=b"x" * n), 1000, C.RESPONSE_BODY_OVER_CAPACITY),
    (lambda n: replace(ALLOW, reason="x" * n), MAX_REASON_BYTES, C.RESPONSE_REASON_OVER_CAPACITY),
    (
        lambda n: replace(ALLOW, reason="é" * (n // 2) + "x" * (n % 2)),
        MAX_REASON_BYTES,
        C.RESPONSE_REASON_OVER_CAPACITY,
    ),
    (lambda n: replace(ALLOW, reason_code="a" * n), 64, C.REASON_CODE_INVALID),
    (lambda n: replace(ALLOW, findings=(Finding(type="t"),) * n), MAX_FINDINGS, C.FINDINGS_OVER_CAPACITY),
    (
        lambda n: replace(ALLOW, findings=(Finding(type="t"), finding_of(n))),
        MAX_FINDING_BYTES,
        C.FINDING_OVER_CAPACITY,
    ),
    (
        lambda n: replace(ALLOW, metadata={str(i): "v" for i in range(n)}),
        MAX_METADATA_ENTRIES,
        C.METADATA_COUNT_OVER_CAPACITY,
    ),
    (
        lambda n: replace(ALLOW, metadata={"key": "é", "k": "v" * (n - 6)}),
        MAX_METADATA_BYTES,
        C.METADATA_BYTES_OVER_CAPACITY,
    ),
    (
        lambda n: replace(ALLOW, mutations=(RemoveHeader(name="x"),) * n),
        MAX_MUTATIONS,
        C.MUTATION_COUNT_OVER_CAPACITY,
    ),
    (lambda n: replace(ALLOW, mutations=data_of(n)), MAX_MUTATION_DATA_BYTES, C.MUTATION_BYTES_OVER_CAPACITY),
]


@pytest.mark.parametrize(("make", "limit", "code"), LIMITS)
def test_the_limit_passes_and_one_more_does_not(make: Callable[[int], Result], limit: int, code: FailureCode) -> None:
    assert breaches(make(limit)) == []
    assert breaches(make(limit + 1)) == [code]


def test_a_reason_code_is_a_word() -> None:
    assert breaches(replace(ALLOW, reason_code="Not A Code")) == [C.REASON_CODE_INVALID]


def test_a_value_is_measured_in_bytes() -> None:
    mutation = write(value="é" * (MAX_MUTATION_DATA_BYTES // 2))
    assert list(mutation_breaches((mutation,))) == [C.MUTATION_BYTES_OVER_CAPACITY]


def test_encoded_mutations_are_limited_before_each_is_judged() -> None:
    # Everything that can pass the limit on data is far below this one, so it is met from above only.
    mutations = tuple(RemoveHeader(name="not ok" * 200) for _ in range(MAX_MUTATIONS))
    assert encoded_mutations_size(mutations) > MAX_MUTATIONS_BYTES
    assert next(mutation_breaches(mutations)) is C.MUTATION_BYTES_OVER_CAPACITY


@pytest.mark.parametrize("value", ["", "tab\there", "é", "\U0001f600", "\x80"])
def test_a_value_of_allowed_bytes_passes(value: str) -> None:
    assert not list(mutation_breaches((write(value=value), write("B"), RemoveHeader(name="X-Api-Key"))))


@pytest.mark.parametrize(
    ("mutation", "code"),
    [
        (write("bad name"), C.MUTATION_INVALID_NAME),
        (RemoveHeader(name=""), C.MUTATION_INVALID_NAME),
        (RemoveHeader(name=":path"), C.MUTATION_INVALID_NAME),
        (RemoveHeader(name="x-ünicode"), C.MUTATION_INVALID_NAME),
        (RemoveHeader(name="x-\N{KELVIN SIGN}"), C.MUTATION_INVALID_NAME),
        (RemoveHeader(name="x-line\n"), C.MUTATION_INVALID_NAME),
        (RemoveHeader(name="X-Mine"), C.MUTATION_PROTECTED_HEADER),
        (WriteHeader(name="x-mine", value="\n", on_existing=ExistingHeader.SKIP), C.MUTATION_PROTECTED_HEADER),
        (WriteHeader(name="x-api-key", value="v", on_existing=ExistingHeader.APPEND), C.MUTATION_NAMESPACE),
        (WriteHeader(name=WRITE_NAMESPACE[:-1], value="v", on_existing=ExistingHeader.APPEND), C.MUTATION_NAMESPACE),
        (write(value="a\rb"), C.MUTATION_UNSAFE_VALUE),
        (write(value="a\nb"), C.MUTATION_UNSAFE_VALUE),
        (write(value="a\n"), C.MUTATION_UNSAFE_VALUE),
        (write(value="\0"), C.MUTATION_UNSAFE_VALUE),
        (write(value="\x7f"), C.MUTATION_UNSAFE_VALUE),
        (write(value="\udc80"), C.MUTATION_UNSAFE_VALUE),
    ],
)
def test_an_invalid_mutation_names_the_first_rule_it_breaks(mutation: HeaderMutation, code: FailureCode) -> None:
    def untouchable(name: str) -> FailureCode | None:
        return C.MUTATION_PROTECTED_HEADER if name == "x-mine" else None

    assert list(mutation_breaches((write(), mutation), untouchable=untouchable)) == [code]


def test_every_breach_is_named_in_the_contracts_order() -> None:
    result = replace(
        ALLOW,
        body=b"x" * 1001,
        reason="x" * (MAX_REASON_BYTES + 1),
        reason_code="?",
        findings=(finding_of(MAX_FINDING_BYTES + 1),) * (MAX_FINDINGS + 1),
        metadata={str(i): "v" * 1000 for i in range(MAX_METADATA_ENTRIES + 1)},
    )
    observed = [
        C.FINDINGS_OVER_CAPACITY,
        C.FINDING_OVER_CAPACITY,
        C.METADATA_COUNT_OVER_CAPACITY,
        C.METADATA_BYTES_OVER_CAPACITY,
    ]
    assert list(observation_breaches(result)) == observed
    assert breaches(result) == [
        C.RESPONSE_BODY_OVER_CAPACITY,
        C.RESPONSE_REASON_OVER_CAPACITY,
        C.REASON_CODE_INVALID,
        *observed,
    ]

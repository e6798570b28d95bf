"""Generations: one value, one spelling, one name; and nothing but `ValueError` from bytes that are none."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.model.canonical import canonical, digest
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.generation import MAX_SHARED_STAGES, Generation, seal, unseal
from supervisor_middleware.model.limits import MAX_CONFIG_DEPTH, MAX_STAGES
from supervisor_middleware.model.manifest import Dialect
from supervisor_middleware.model.revision import Unresolved
from tests.builders import a_generation, a_service, a_stage

FULL = a_generation(
    a_stage("built-in", binding="openshell/regex", service=None, config={"mode": "redact", "n": 1e20}),
    a_stage("redact", exclude=["trusted.example.com"], on_error=OnError.FAIL_OPEN),
    a_stage("broken", unresolved=Unresolved.NEVER_ACCEPTED),
    services=[a_service(activation_deadline=timedelta(minutes=1)), a_service("patient")],
)

scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
configs = st.dictionaries(st.text(max_size=5), scalars | st.text() | st.lists(scalars, max_size=3), max_size=4)
stages = st.builds(
    a_stage,
    st.from_regex(r"[a-z]{1,5}", fullmatch=True),
    service=st.sampled_from(["acme", "other", None]),
    config=configs,
    on_error=st.sampled_from(OnError),
    include=st.lists(st.sampled_from(["**", "*.example.com", "a-*.test"]), min_size=1, max_size=3),
    timeout=st.integers(10, 30_000).map(lambda n: timedelta(milliseconds=n)),
    unresolved=st.none() | st.sampled_from(Unresolved),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def unsealed(payload: bytes) -> Generation:
    return unseal(payload, expected_digest=digest(payload)).generation


def with_config(config: Any) -> bytes:
    value = json.loads(FULL.payload())
    value["stages"][0]["config"] = config
    return json.dumps(value).encode()


@given(st.lists(stages, max_size=MAX_STAGES))
def test_a_sealed_generation_unseals_to_the_same(chain: list[Any]) -> None:
    sealed = seal(a_generation(*chain))
    assert unseal(sealed.payload, expected_digest=sealed.digest) == sealed
    assert unsealed(sealed.payload).payload() == sealed.payload


def test_the_empty_generation_and_a_full_one_unseal() -> None:
    for generation in (Generation(), FULL):
        assert unsealed(generation.payload()) == generation


@given(configs)
def test_key_order_of_a_config_does_not_change_the_digest(config: dict[str, Any]) -> None:
    turned = dict(reversed(config.items()))
    assert seal(a_generation(a_stage(config=config))).digest == seal(a_generation(a_stage(config=turned))).digest


@given(st.binary())
def test_hostile_bytes_raise_value_error(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        unsealed(payload)


@given(json_values)
def test_any_other_json_raises_value_error(value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        unsealed(json.dumps(value).encode())


@given(st.data())
def test_a_generation_with_anything_put_into_it_raises_nothing_but_value_error(data: st.DataObject) -> None:
    value = json.loads(FULL.payload())
    parts = [
        value,
        *value["stages"],
        *value["services"],
        value["services"][0]["connection"],
        value["services"][0]["needs"][0],
    ]
    target = data.draw(st.sampled_from(parts))
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(json_values)
    try:
        unsealed(json.dumps(value).encode())
    except ValueError:
        return


@given(st.data())
def test_a_flipped_byte_is_noticed(data: st.DataObject) -> None:
    sealed = seal(FULL)
    position = data.draw(st.integers(0, len(sealed.payload) - 1))
    flipped = bytearray(sealed.payload)
    flipped[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match="digest"):
        unseal(bytes(flipped), expected_digest=sealed.digest)


@pytest.mark.parametrize("depth", [100, 900, 100_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    payload = with_config("@").replace(b'"@"', b'{"a":' * depth + b"1" + b"}" * depth)
    with pytest.raises(ValueError, match=r"nests|levels"):
        unsealed(payload)


def test_a_config_may_nest_as_deep_as_the_limit() -> None:
    config: dict[str, Any] = {}
    for _ in range(MAX_CONFIG_DEPTH):
        config = {"a": config}
    assert unsealed(canonical(json.loads(with_config(config)))).stages[0].config == config


@pytest.mark.parametrize("config", [None, 5, "text", []])
def test_a_config_that_is_no_object_is_refused(config: Any) -> None:
    with pytest.raises(ValueError, match="not a generation"):
        unsealed(with_config(config))


def test_an_unknown_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schemaVersion"):
        unsealed(canonical({**json.loads(FULL.payload()), "schemaVersion": 3}))


@pytest.mark.parametrize(("text", "deadline"), [(None, None), ("90s", timedelta(seconds=90))])
def test_what_the_release_before_wrote_is_read_with_its_one_deadline_for_each_service(
    text: str | None, deadline: timedelta | None
) -> None:
    value = json.loads(FULL.payload())
    for service in value["services"]:
        del service["activationDeadline"]
    payload = canonical({**value, "schemaVersion": 1, "activationDeadline": text})
    sealed = unseal(payload, expected_digest=digest(payload))
    assert sealed.payload == payload
    assert {s.activation_deadline for s in sealed.generation.services} == {deadline}
    assert [replace(s, activation_deadline=None) for s in sealed.generation.services] == [
        replace(s, activation_deadline=None) for s in FULL.services
    ]


def test_a_stage_is_the_platforms_unless_its_policy_has_a_namespace() -> None:
    stages = (a_stage(policy="team-a/mine"), a_stage(policy="baseline"), a_stage(policy=""))
    assert [s.is_platforms for s in stages] == [False, True, True]


def test_ten_stages_that_run_are_the_most() -> None:
    chain = [a_stage(f"s{n}") for n in range(MAX_STAGES)]
    assert len(unsealed(a_generation(*chain).payload()).stages) == MAX_STAGES
    with pytest.raises(ValueError, match="more than 10 stages"):
        unsealed(a_generation(*chain, a_stage("more")).payload())


def test_four_stages_for_what_did_not_fit_come_besides_and_no_more() -> None:
    chain = [a_stage(f"s{n}") for n in range(MAX_STAGES)]
    shared = [a_stage(f"rest{n}", unresolved=Unresolved.CONFLICTED) for n in range(MAX_SHARED_STAGES)]
    assert len(unsealed(a_generation(*chain, *shared).payload()).stages) == MAX_STAGES + MAX_SHARED_STAGES
    with pytest.raises(ValueError, match="more than 10 stages"):
        unsealed(a_generation(*chain, *shared, a_stage("more", unresolved=Unresolved.CONFLICTED)).payload())


def test_a_stage_without_its_service_is_refused() -> None:
    with pytest.raises(ValueError, match="how to reach"):
        unsealed(a_generation(a_stage(service="acme"), services=[a_service("other")]).payload())


def test_stages_are_chosen_by_host_in_running_order() -> None:
    chain = (
        a_stage("a", include=["**"]),
        a_stage("b", include=["api.test"]),
        a_stage("c", include=["**"], exclude=["api.test"]),
    )
    generation = a_generation(*chain)
    assert [s.key for s in generation.chain_for("api.test")] == ["a", "b"]
    assert [s.key for s in generation.chain_for("other.test")] == ["a", "c"]


def test_a_service_is_found_by_name() -> None:
    generation = a_generation(services=[a_service("acme", dialect=Dialect.RELEASED)])
    assert generation.service("acme") == generation.services[0]
    assert generation.service("other") is None


def test_configs_stay_out_of_reprs() -> None:
    generation = a_generation(a_stage(config={"key": "canary"}))
    assert "canary" not in repr(generation)
    assert "canary" not in repr(seal(generation))

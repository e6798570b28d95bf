"""A short run of the fuzz target with every test run; `make bench` runs it for a minute."""

import random

import pytest

from tests.benchmarks import fuzz as subject
from tests.benchmarks.fuzz import fuzz
from tests.benchmarks.mutations import MAX_BYTES, mutated, objects, reshaped, text_seeds


async def test_whatever_is_read_has_an_answer_that_can_be_shown() -> None:
    found = await fuzz(20261130, goes_on=lambda number: number < 300)
    assert found.failures == []
    assert found.inputs == 300


async def test_what_escapes_is_a_failure_that_names_seed_and_input(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise KeyError("spec")

    monkeypatch.setattr(subject, "gather", broken)
    found = await fuzz(3, goes_on=lambda number: number < 1000, slow=-1.0)
    assert found.failures[0].startswith("input 0 of seed 3: KeyError")
    assert "input 0 of seed 3: took" in found.failures[1]
    assert len(found.failures) < 100


def test_a_seed_always_makes_the_same_inputs() -> None:
    seeds = text_seeds()
    values = objects(seeds)

    def some(seed: int) -> list[bytes]:
        chance = random.Random(seed)
        texts = [mutated(chance.choice(seeds), other=chance.choice(seeds), chance=chance) for _ in range(50)]
        return texts + [reshaped(chance.choice(values), other=values[0], chance=chance) for _ in range(50)]

    assert some(1) == some(1) != some(2)
    assert max(map(len, some(3))) <= MAX_BYTES

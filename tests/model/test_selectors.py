"""Label selectors mean what they mean in Kubernetes."""

from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.model.selectors import Operator, Requirement, Selector, implies, meet

LABELS = {"tier": "dev", "empty": ""}


@pytest.mark.parametrize(
    ("key", "operator", "values", "holds"),
    [
        ("tier", Operator.IN, ("dev", "test"), "yes"),
        ("tier", Operator.IN, ("prod",), "no"),
        ("absent", Operator.IN, ("dev",), "no"),
        ("tier", Operator.NOT_IN, ("prod",), "yes"),
        ("tier", Operator.NOT_IN, ("dev", "test"), "no"),
        ("absent", Operator.NOT_IN, ("dev",), "yes"),
        ("tier", Operator.EXISTS, (), "yes"),
        ("empty", Operator.EXISTS, (), "yes"),
        ("absent", Operator.EXISTS, (), "no"),
        ("tier", Operator.DOES_NOT_EXIST, (), "no"),
        ("absent", Operator.DOES_NOT_EXIST, (), "yes"),
        ("empty", Operator.IN, ("",), "yes"),
        ("absent", Operator.IN, ("",), "no"),
    ],
)
def test_a_requirement_holds_as_in_kubernetes(
    key: str, operator: Operator, values: tuple[str, ...], holds: str
) -> None:
    assert Requirement(key=key, operator=operator, values=values).holds(LABELS) == (holds == "yes")


def test_an_empty_selector_selects_everything() -> None:
    assert Selector().selects({})
    assert Selector().selects(LABELS)


def test_all_requirements_must_hold() -> None:
    tier = Requirement(key="tier", operator=Operator.IN, values=("dev",))
    absent = Requirement(key="absent", operator=Operator.EXISTS)
    assert Selector(requirements=(tier,)).selects(LABELS)
    assert not Selector(requirements=(tier, absent)).selects(LABELS)


def test_an_operator_that_does_not_exist_is_a_bug_not_an_answer() -> None:
    with pytest.raises(AssertionError):
        Requirement(key="tier", operator="Near").holds(LABELS)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------- compared

KEYS = ("app", "tier")
VALUES = ("a", "b", "c")
OTHER = "none of those that a selector names"
_WITHOUT_VALUES = (Operator.EXISTS, Operator.DOES_NOT_EXIST)


@st.composite
def requirements(draw: st.DrawFn) -> Requirement:
    operator = draw(st.sampled_from(list(Operator)))
    values = () if operator in _WITHOUT_VALUES else tuple(draw(st.sets(st.sampled_from(VALUES), max_size=3)))
    return Requirement(key=draw(st.sampled_from(KEYS)), operator=operator, values=values)


SELECTORS = st.lists(requirements(), max_size=4).map(lambda found: Selector(requirements=tuple(found)))


def every_label_set() -> Iterator[dict[str, str]]:
    """All that can make a difference: each label absent, with a value that is named, or with another."""
    for chosen in product((None, *VALUES, OTHER), repeat=len(KEYS)):
        yield {key: value for key, value in zip(KEYS, chosen, strict=True) if value is not None}


@given(SELECTORS, SELECTORS)
def test_meeting_is_what_trying_every_label_says(a: Selector, b: Selector) -> None:
    found = meet(a, b)
    assert (found is not None) == any(a.selects(labels) and b.selects(labels) for labels in every_label_set())
    assert found is None or (a.selects(found) and b.selects(found))


@given(SELECTORS, SELECTORS)
def test_implying_is_what_trying_every_label_says(a: Selector, b: Selector) -> None:
    assert implies(a, b) == all(b.selects(labels) for labels in every_label_set() if a.selects(labels))


@given(st.lists(SELECTORS, max_size=3))
def test_no_fewer_labels_would_do(selectors: list[Selector]) -> None:
    found = meet(*selectors)
    for key in found or ():
        fewer = {k: v for k, v in (found or {}).items() if k != key}
        assert not all(s.selects(fewer) for s in selectors)


def a_selector(key: str, operator: Operator, *values: str) -> Selector:
    return Selector(requirements=(Requirement(key=key, operator=operator, values=values),))


def test_a_value_that_is_excluded_is_not_the_example() -> None:
    asked = (a_selector("app", Operator.EXISTS), a_selector("app", Operator.NOT_IN, "any", "any-2"))
    assert meet(*asked) == {"app": "any-3"}


def test_everything_meets_everything_without_a_label() -> None:
    assert meet(Selector(), Selector()) == {}
    assert implies(a_selector("app", Operator.IN, "x"), Selector())
    assert not implies(Selector(), a_selector("app", Operator.IN, "x"))

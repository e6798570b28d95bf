"""Label selectors mean what they mean in Kubernetes."""

import pytest

from supervisor_middleware.model.selectors import Operator, Requirement, Selector

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

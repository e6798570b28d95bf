"""Example hosts are found cheaply where they are plain, exactly where they are not, and are always right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.compiler.witnesses import Witnesses, select, selection_of
from supervisor_middleware.model.host_sets import Budget, TooComplex, find_selected
from supervisor_middleware.model.hosts import HostSelector, normalize_host


def test_what_is_plain_costs_no_search() -> None:
    witnesses = Witnesses(budget=Budget(0))
    assert witnesses.shared(selection_of(("*.example.com",)), selection_of(("**",))) == "a.example.com"
    assert witnesses.shared(selection_of(("*.example.com",)), selection_of(("**.example.org",))) is None
    assert witnesses.shared(selection_of(("example.com",)), selection_of(("a.example.com",))) is None
    assert witnesses.shared(selection_of(("db-*.x.test",), ("db-x.x.test",))) == "db-a.x.test"


def test_what_is_not_plain_is_decided_exactly() -> None:
    assert Witnesses().shared(selection_of(("*x.test",)), selection_of(("y*.test",))) == "yx.test"
    assert Witnesses().shared(selection_of(("*.test",), ("a.test",))) not in {None, "a.test"}
    assert Witnesses().shared(selection_of(("*.test",), ("**.test",))) is None


def test_a_pattern_that_no_host_has_is_no_example() -> None:
    assert selection_of(("*.1", "*.*.*.256")).likely == ()
    assert Witnesses().shared(selection_of(("*.1",))) is None


def test_what_is_too_intricate_is_said_to_be() -> None:
    with pytest.raises(TooComplex):
        Witnesses(budget=Budget(0)).shared(selection_of(("*x.test",)), selection_of(("y*.test",)))


labels = st.sampled_from(["a", "b", "*", "**", "a*", "*b"])
patterns = st.lists(labels, min_size=1, max_size=3).map(".".join)
selectors = st.tuples(
    st.lists(patterns, min_size=1, max_size=2).map(tuple), st.lists(patterns, max_size=2).map(tuple)
)


@given(st.lists(selectors, min_size=1, max_size=3))
def test_the_answer_is_that_of_the_search(given_selectors: list[tuple[tuple[str, ...], tuple[str, ...]]]) -> None:
    selections = [selection_of(*s) for s in given_selectors]
    chosen: list[HostSelector] = [s.selector for s in selections]
    found = Witnesses(budget=Budget()).shared(*map(select, chosen))
    assert (found is None) == (find_selected(inside=[[s] for s in chosen]) is None)
    if found is not None:
        assert normalize_host(found) == found
        assert all(s.selects(found) for s in chosen)

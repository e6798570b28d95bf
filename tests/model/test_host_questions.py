"""Questions about sets of hosts: simpler ones have the same answers."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor_middleware.model.host_questions import Question, is_host
from supervisor_middleware.model.hosts import HostPattern, HostSelector, parse_patterns

HOSTS = [
    *(".".join(labels) for count in (1, 2, 3) for labels in product(["a", "b", "ab", "ba"], repeat=count)),
    "1.1.1.1",
    "[::1]",
]

labels = st.sampled_from(["a", "b", "ab", "*", "**", "a*", "*b", "a*b"])
patterns = st.lists(labels, min_size=1, max_size=3).map(lambda found: HostPattern(tuple(found)))
selectors = st.builds(
    HostSelector, include=st.lists(patterns, max_size=3).map(tuple), exclude=st.lists(patterns, max_size=2).map(tuple)
)
groups = st.lists(selectors, max_size=3).map(tuple)
questions = st.builds(Question, inside=st.lists(groups, max_size=3).map(tuple), outside=groups)


def a_question(*include: str, outside: tuple[str, ...] = ()) -> Question:
    """One group for each pattern."""
    return Question(
        inside=tuple((HostSelector(include=parse_patterns([text])),) for text in include),
        outside=(HostSelector(include=parse_patterns(outside)),),
    )


@settings(deadline=None)
@given(questions)
def test_a_simpler_question_has_the_same_answers(question: Question) -> None:
    simpler = question.simplified()
    assert [host for host in HOSTS if simpler.holds_for(host)] == [host for host in HOSTS if question.holds_for(host)]


@pytest.mark.parametrize(
    ("question", "simpler"),
    [
        (a_question("*.a.com", "*.b.com"), Question(inside=((), ()), outside=())),
        (a_question("a-*.com", "b-*.com"), Question(inside=((), ()), outside=())),
        (
            a_question("**", outside=("**", "a")),
            Question(inside=((),), outside=a_question(outside=("**", "a")).outside),
        ),
        (a_question("*.com", outside=("*.net", "a.com", "**.*")), a_question("*.com", outside=("a.com", "**.*"))),
    ],
)
def test_what_no_answer_can_match_is_left_out(question: Question, simpler: Question) -> None:
    assert question.simplified() == simpler


def test_literal_hosts_are_those_of_a_group_without_wildcards() -> None:
    group = tuple(
        HostSelector(include=parse_patterns(texts))
        for texts in (["1.2.3.4", "b.test", "1.test"], ["a.a.test", "a.test", "1.2.3.256", "a.0x1"])
    )
    wild = (HostSelector(include=parse_patterns(["a.test", "*.test"])),)
    question = Question(inside=(wild, group), outside=())
    assert question.literal_hosts() == ["1.test", "a.test", "b.test", "a.a.test", "1.2.3.4"]
    assert Question(inside=(wild,), outside=()).literal_hosts() is None
    assert Question(inside=(wild, ()), outside=()).literal_hosts() == []


@pytest.mark.parametrize("text", ["A.test", "a.test.", "a.test:443", "1.2.3", "a..b", "[::1", "*"])
def test_what_is_spelled_in_another_way_is_no_host(text: str) -> None:
    assert not is_host(text)

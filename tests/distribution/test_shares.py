"""Who gives way: whoever has the most."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.distribution.shares import Owner, first_to_yield, owner_of, yielding


def owners(text: str) -> list[Owner]:
    """`a1 a1 b1`: what member 1 of group a has twice, and of group b once."""
    return [Owner(group=word[0], member=word) for word in text.split()]


@pytest.mark.parametrize(
    ("having", "first"),
    [
        ("a1", 0),
        ("a1 b1 b1", 1),
        ("b1 a1 b1", 0),
        ("a1 a1 b1 b2 b3", 2),  # three members of a group have more than the one of another
        ("a1 b1 b2 b2", 2),
        ("b1 b2 b3 b2 a1 a1", 1),
        ("a1 b1 c1", 0),  # all have the same: whoever stands first
        ("a1 b1 b1 a1", 0),
    ],
)
def test_whoever_has_the_most_gives_way(having: str, first: int) -> None:
    assert yielding(owners(having))[0] == first
    assert first_to_yield(owners(having)) == first


@given(st.lists(st.sampled_from(["a1", "a2", "a3", "b1", "b2", "c1", "d1"]), max_size=40), st.integers(0, 40))
def test_shares_are_fair_among_groups_and_then_among_members(having: list[str], places: int) -> None:
    all_owners = owners(" ".join(having))
    order = yielding(all_owners)
    assert sorted(order) == list(range(len(having)))
    lost = [all_owners[position] for position in order[: max(0, len(having) - places)]]
    kept = [all_owners[position] for position in order[max(0, len(having) - places) :]]
    groups, members = [o.group for o in kept], [o.member for o in kept]
    for loser in lost:
        assert all(groups.count(loser.group) >= groups.count(g) - 1 for g in groups)
        same = [o.member for o in kept if o.group == loser.group]
        assert all(members.count(loser.member) >= members.count(m) - 1 for m in same)


@given(st.lists(st.sampled_from(["a1", "a2", "a3", "b1", "b2", "c1", "d1"]), min_size=1, max_size=40))
def test_the_first_is_of_the_largest_group_and_of_the_largest_member_in_it(having: list[str]) -> None:
    groups = [name[0] for name in having]
    first = having[first_to_yield(owners(" ".join(having)))]
    assert groups.count(first[0]) == max(map(groups.count, groups))
    assert having.count(first) == max(having.count(name) for name in having if name[0] == first[0])
    assert having.index(first) == first_to_yield(owners(" ".join(having)))


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.1.2.3", "10.1.2.0/24"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("", ""),
        ("unix:/tmp/socket", "unix:/tmp/socket"),
    ],
)
def test_a_host_stands_in_its_network(host: str, network: str) -> None:
    assert owner_of(host) == Owner(group=network, member=host)

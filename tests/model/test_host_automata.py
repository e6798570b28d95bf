"""Hosts and patterns as automata: they know the hosts that `normalize_host` returns and `HostPattern` matches."""

from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.model.host_automata import IPV4_ADDRESSES, NAMES, Builder, Grammar
from supervisor_middleware.model.hosts import HostPattern, normalize_host

texts = st.text("09afgx-_.", min_size=1, max_size=12)
octets = st.sampled_from(
    ["0", "00", "1", "01", "9", "10", "99", "100", "199", "200", "249", "255", "256", "260", "1000"]
)
addresses = st.lists(octets, min_size=1, max_size=5).map(".".join)
labels = st.one_of(
    st.sampled_from(["*", "**"]), st.text("ab*", min_size=1, max_size=5).filter(lambda label: "**" not in label)
)
patterns = st.lists(labels, min_size=1, max_size=5).map(lambda found: HostPattern(tuple(found)))
names = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=5).map(".".join)


def is_accepted(text: str, grammar: Grammar) -> bool:
    state: int | None = 0
    for character in reversed(text):
        state = None if state is None else grammar.steps[state].get(character)
    return state in grammar.accepting


def is_host(text: str) -> bool:
    try:
        return normalize_host(text) == text
    except ValueError:
        return False


@given(st.one_of(texts, addresses))
def test_every_host_is_a_name_or_an_ipv4_address_and_nothing_else_is(text: str) -> None:
    name, address = is_accepted(text, NAMES), is_accepted(text, IPV4_ADDRESSES)
    assert (name or address) == is_host(text)
    assert not (name and address)


def test_the_octets_are_0_to_255() -> None:
    accepted = [number for number in range(2000) if is_accepted(f"{number}.0.0.0", IPV4_ADDRESSES)]
    assert accepted == list(range(256))


@given(st.lists(patterns, min_size=1, max_size=4), names)
def test_patterns_side_by_side_match_what_each_matches(side_by_side: list[HostPattern], host: str) -> None:
    builder = Builder()
    positions = [builder.add([pattern]) for pattern in side_by_side]
    automaton = builder.build()
    bits = automaton.start
    for place, character in enumerate(reversed(host), start=1):
        bits = next(after for _, after, _ in automaton.read(bits, {character: 0}))
        so_far = host[-place:]
        if so_far[0] == ".":
            continue
        for pattern, own in zip(side_by_side, positions, strict=True):
            assert bool(bits & own.finals) == pattern.matches(so_far), so_far
            assert pattern.matches(host) or not bits & own.sinks
            assert bits & own.states or not pattern.matches(host)


@given(st.lists(patterns, max_size=4), names)
def test_patterns_added_together_are_one(together: list[HostPattern], host: str) -> None:
    builder = Builder()
    positions = builder.add(together)
    automaton = builder.build()
    bits = automaton.start
    for character in reversed(host):
        bits = next(after for _, after, _ in automaton.read(bits, {character: 0}))
    assert bool(bits & positions.finals) == any(pattern.matches(host) for pattern in together)
    assert automaton.size == positions.states.bit_count()


def test_characters_that_make_no_difference_are_read_once() -> None:
    builder = Builder()
    builder.add([HostPattern(("*a*b",)), HostPattern(("**",))])
    automaton = builder.build()
    read = [character for character, _, _ in automaton.read(automaton.start, dict.fromkeys("abcdefg", 0))]
    assert read == ["a", "b"]
    read = [
        character for character, _, _ in automaton.read(automaton.start, {"a": 0, "b": 0, "c": 1, "d": 1, ".": 2})
    ]
    assert read == ["a", "b", "c", "."]

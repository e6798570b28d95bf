"""Laws of composition: whatever policies there are, a sandbox gets a whole generation in which nothing is lost."""

from datetime import timedelta
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.compiler.binding import bind
from supervisor_middleware.compiler.composition import compose
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.generation import Generation, seal, unseal
from supervisor_middleware.model.limits import MAX_STAGES, MAX_STREAM_MESSAGE_BYTES
from supervisor_middleware.model.revision import Revision, Unresolved
from tests.builders import (
    NOW,
    a_binding,
    a_connection,
    a_manifest,
    a_revision,
    a_sandbox,
    an_accepted_registration,
    an_entry,
    some_settings,
)

REGISTRATIONS = [
    an_accepted_registration("acme", manifest=a_manifest(a_binding("acme/a"), a_binding("acme/b"))),
    an_accepted_registration("other", manifest=a_manifest(a_binding("other/c"))),
]
BINDINGS = bind(REGISTRATIONS, some_settings().builtins)
HOSTS = ("a.test", "b.test", "c.test")

entries = st.builds(
    an_entry,
    st.sampled_from("abcdefghijklm"),
    binding=st.sampled_from(["acme/a", "acme/b", "other/c", "openshell/regex", "gone/d"]),
    order=st.integers(0, 12),
    on_error=st.sampled_from(OnError),
    include=st.lists(st.sampled_from(HOSTS), min_size=1, max_size=2, unique=True),
)
policies = st.lists(entries, min_size=1, max_size=10, unique_by=(lambda e: e.key, lambda e: e.order))
worlds = st.lists(st.tuples(policies, st.integers(0, 2)), max_size=6).map(
    lambda found: [
        a_revision(*chain, name=f"p{n}", created_at=NOW + timedelta(seconds=age))
        for n, (chain, age) in enumerate(found)
    ]
)


def composed(revisions: list[Revision]) -> Generation:
    return compose(a_sandbox(), revisions, namespace_labels={}, bindings=BINDINGS, settings=some_settings())[0]


@given(worlds)
def test_a_generation_is_one_a_supervisor_takes(revisions: list[Revision]) -> None:
    sealed = seal(composed(revisions))
    assert unseal(sealed.payload, expected_digest=sealed.digest) == sealed
    assert len({s.key for s in sealed.generation.stages}) == len(sealed.generation.stages)


@given(worlds, st.randoms())
def test_the_order_policies_are_listed_in_does_not_matter(revisions: list[Revision], random: Random) -> None:
    shuffled = list(revisions)
    random.shuffle(shuffled)
    assert seal(composed(shuffled)).digest == seal(composed(revisions)).digest


@given(worlds)
def test_no_host_of_a_fail_closed_entry_is_let_through(revisions: list[Revision]) -> None:
    generation = composed(revisions)
    for entry in (e for r in revisions for e in r.entries if e.on_error is OnError.FAIL_CLOSED):
        for host in entry.include:
            chain = generation.chain_for(host)
            same = [s for s in chain if s.key == entry.key and s.binding == entry.binding and s.unresolved is None]
            closed = [s for s in chain if s.unresolved is not None and s.on_error is OnError.FAIL_CLOSED]
            assert same or closed


@given(worlds)
def test_the_oldest_policy_runs_whole_whatever_the_others_say(revisions: list[Revision]) -> None:
    oldest = min(revisions, key=lambda r: (r.created_at, r.policy.name), default=None)
    if oldest is not None:
        alone, together = composed([oldest]), composed(revisions)
        name = f"team-a/{oldest.policy.name}"
        assert list(alone.stages) == [s for s in together.stages if s.policy == name]


@given(worlds)
def test_services_are_those_that_stages_need_and_no_other(revisions: list[Revision]) -> None:
    generation = composed(revisions)
    assert {s.name for s in generation.services} == {s.service for s in generation.stages} - {None}
    for service in generation.services:
        assert {b.id for b in service.needs} == {s.binding for s in generation.stages if s.service == service.name}


@given(worlds)
def test_at_most_ten_stages_run(revisions: list[Revision]) -> None:
    generation = composed(revisions)
    assert sum(s.unresolved is None for s in generation.stages) <= MAX_STAGES
    assert len(generation.stages) <= MAX_STAGES + 2, "one stage closes what is left over and one lets it pass"


def test_two_services_of_one_name_are_never_taken_for_each_other() -> None:
    older = an_accepted_registration("same", uid="1", manifest=a_manifest(a_binding("older/a")))
    younger = an_accepted_registration(
        "same",
        uid="2",
        created_at=NOW + timedelta(seconds=1),
        connection=a_connection("https://younger.test:443"),
        manifest=a_manifest(a_binding("younger/b")),
    )
    for order in ([older, younger], [younger, older]):
        bindings = bind(order, ())
        assert bindings.find("older/a") is not None
        assert bindings.find("younger/b") is None


def test_of_two_services_with_one_binding_the_older_serves_it() -> None:
    younger = an_accepted_registration("younger", created_at=NOW + timedelta(seconds=1))
    found = bind([younger, an_accepted_registration("older")], ()).find("acme/redactor")
    assert found is not None
    assert found.registration is not None
    assert found.registration.name == "older"


def test_conflicts_without_end_still_make_a_generation_that_can_be_sent() -> None:
    """One that outgrows the stream's limit reaches nobody, and a stage of all their patterns is matched for seconds."""
    kinds = tuple(OnError)
    policies = [
        a_revision(
            *(
                an_entry(
                    f"k{n}",
                    binding="openshell/regex",
                    order=n,
                    on_error=kinds[n % 2],
                    include=[f"{'x' * 60}.{'y' * 60}.{'z' * 60}.{name}-{n}-{i}.test" for i in range(32)],
                )
                for n in range(10)
            ),
            name=f"p{name}",
        )
        for name in range(300)
    ]
    generation, _ = compose(a_sandbox(), policies, namespace_labels={}, bindings=BINDINGS, settings=some_settings())
    assert len(generation.payload()) < MAX_STREAM_MESSAGE_BYTES
    *_, closed, bypassed = generation.chain_for("conflicted.example")
    assert (closed.on_error, closed.unresolved) == (OnError.FAIL_CLOSED, Unresolved.CONFLICTED)
    assert (bypassed.on_error, bypassed.unresolved) == (OnError.FAIL_OPEN, Unresolved.CONFLICTED)

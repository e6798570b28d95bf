"""What was published is audited once a generation, not once a sandbox, and not again by an operator that starts."""

from supervisor_middleware.audit.events import Changed, ChangeKind, Event
from supervisor_middleware.control.publications import Publications
from supervisor_middleware.distribution.offers import Assignment
from supervisor_middleware.model.generation import Sealed, seal
from tests.builders import a_generation, a_policy, a_registration, a_sandbox, a_stage
from tests.fakes.control import FakeWorld, a_control

ONE, TWO = seal(a_generation(a_stage("one"))), seal(a_generation(a_stage("two")))
A, B, C = a_sandbox("a"), a_sandbox("b"), a_sandbox("c")
SANDBOXES = {s.key: s for s in (A, B, C)}
POLICY = "uid-of-team-a-redaction"


def all_of(sealed: Sealed) -> dict[str, Sealed]:
    return {s.key: sealed for s in (A, B, C)}


async def audited(*published: dict[str, Sealed]) -> list[Event]:
    """Each is all there is; what is told are the changes."""
    events: list[Event] = []
    publications, before = Publications(events.append), dict[str, Sealed]()
    for generations in published:
        await publications.tell(
            {
                key: Assignment(sandbox=SANDBOXES.get(key, A), sealed=generations[key])
                if key in generations
                else None
                for key in {**before, **generations}
            }
        )
        before = generations
    return events


def a_publication(subject: str, *, count: int, digest: str = "", reason: str = "") -> Changed:
    kind = ChangeKind.GENERATION_PUBLISHED
    return Changed(kind=kind, subject=subject, reason=reason, digest=digest, count=count)


STARTED = a_publication("3 sandboxes", count=3, reason="Started")


async def test_an_operator_that_starts_says_so_once() -> None:
    assert await audited(all_of(ONE)) == [STARTED]
    assert await audited({}) == []
    assert await audited({A.key: ONE}) == [a_publication("1 sandbox", count=1, reason="Started")]


async def test_one_generation_of_many_sandboxes_is_one_event() -> None:
    assert await audited(all_of(ONE), all_of(TWO)) == [
        STARTED,
        a_publication("3 sandboxes", count=3, digest=TWO.digest),
    ]


async def test_one_sandbox_is_named() -> None:
    events = await audited(all_of(ONE), {**all_of(ONE), A.key: TWO}, {A.key: TWO, B.key: ONE}, all_of(ONE))
    assert events[1:] == [
        a_publication("Sandbox team-a/a", count=1, digest=TWO.digest),
        a_publication("2 sandboxes", count=2, digest=ONE.digest),
    ]


async def test_what_is_as_it_was_is_not_told() -> None:
    assert await audited(all_of(ONE), all_of(ONE), {}) == [STARTED]


async def test_the_first_after_nothing_is_told() -> None:
    assert await audited({}, {A.key: ONE}) == [a_publication("Sandbox team-a/a", count=1, digest=ONE.digest)]


async def test_many_generations_are_all_told() -> None:
    many = {f"uid-{n}": seal(a_generation(a_stage(f"s{n}"))) for n in range(120)}
    events = await audited({}, many)
    assert len({e.digest for e in events if isinstance(e, Changed)}) == 120


async def test_a_reconciler_tells_what_it_published_and_a_restart_repeats_nothing() -> None:
    world = FakeWorld(registrations=[a_registration()], policies=[a_policy()], sandboxes=[a_sandbox()])
    control = a_control(world)
    await control.settle()
    digest = control.distributor.generations["uid-of-team-a-coder"].digest
    assert control.published() == [("1 sandbox", "Started"), ("Sandbox team-a/coder", digest)]
    for _ in range(3):
        await control.later(61)
    assert len(control.published()) == 2
    restarted = a_control(world)
    await restarted.settle()
    assert restarted.published() == [("1 sandbox", "Started")]

"""What is judged is judged again only when something it depends on has changed."""

from dataclasses import replace
from datetime import timedelta

import pytest

from supervisor_middleware.compiler.binding import Bindings, bind
from supervisor_middleware.compiler.drafts import PolicyDraft, draft_policy
from supervisor_middleware.compiler.questions import questions
from supervisor_middleware.control import judge as subject
from supervisor_middleware.control.acceptances import acceptance_of
from supervisor_middleware.control.decisions import decide_registry
from supervisor_middleware.control.judge import Judge, PolicyDecision
from supervisor_middleware.control.registrations import Registry
from supervisor_middleware.model.snapshot import Snapshot, Stored, StoredRevision
from supervisor_middleware.model.verdict import Accepted, Outage, Rejected, Unreachable, Verdict
from supervisor_middleware.model.violation import Reason, Violation
from supervisor_middleware.registry.catalog import Catalog
from tests.builders import (
    NOW,
    a_binding,
    a_manifest,
    a_policy,
    a_registration,
    a_revision,
    an_accepted_registration,
    some_settings,
)

SETTINGS = some_settings()


def bindings(*, max_body_bytes: int = 65536, others: int = 0) -> Bindings:
    more = (an_accepted_registration(f"other-{n}", uid=f"o{n}") for n in range(others))
    return bind((an_accepted_registration(max_body_bytes=max_body_bytes), *more), SETTINGS.builtins)


def an_unreachable_registration() -> Registry:
    snapshot, catalog = Snapshot(registrations=(a_registration(),)), Catalog()
    (undescribed,) = decide_registry(
        snapshot, catalog, settings=SETTINGS, acceptance=acceptance_of(snapshot)
    ).registrations
    assert undescribed.draft.connection is not None
    outage = Unreachable(Outage.CALL_FAILED)
    catalog.described(undescribed.draft.connection, undescribed.draft.name, description=outage, now=NOW)
    return decide_registry(snapshot, catalog, settings=SETTINGS, acceptance=acceptance_of(snapshot))


def judged(
    judge: Judge,
    stored: Stored,
    *,
    of: Bindings,
    verdict: Verdict | None = None,
    catalog: Catalog | None = None,
    accepted: StoredRevision | None = None,
    registry: Registry | None = None,
) -> PolicyDecision:
    catalog = Catalog() if catalog is None else catalog
    for question in questions(judge.read(stored).draft, of):
        catalog.decided(question.key, verdict or Accepted(), now=NOW)
    around = judge.around(registry or Registry(registrations=(), bindings=of), catalog)
    return judge.decide(stored, catalog, around=around, accepted=accepted)


def test_an_unchanged_policy_is_judged_once() -> None:
    judge, catalog, stored = Judge(SETTINGS), Catalog(), a_policy()
    first = judged(judge, stored, of=bindings(), catalog=catalog)
    assert judged(judge, stored, of=bindings(), catalog=catalog) is first
    # A new object with the same spec, as after every status write; bindings made anew, as at every pass.
    again = replace(a_policy(), resource_version="2", status={"observedGeneration": 1})
    assert judge.knows(again)
    assert judged(judge, again, of=bindings()).compiled is first.compiled
    assert judge.compilations == 1


def test_an_edit_is_judged_anew() -> None:
    judge = Judge(SETTINGS)
    first = judged(judge, a_policy(), of=bindings()).compiled
    edited = a_policy(generation=2, order=7)
    assert not judge.knows(edited)
    second = judged(judge, edited, of=bindings()).compiled
    assert first is not None
    assert second is not None
    assert second.digest != first.digest
    assert second.revision is not None
    assert second.revision.generation == 2


def test_a_policy_created_again_under_its_name_is_another() -> None:
    judge = Judge(SETTINGS)
    judged(judge, a_policy(), of=bindings())
    assert not judge.knows(replace(a_policy(), uid="another"))


def test_another_answer_is_another_judgement() -> None:
    judge, catalog, stored = Judge(SETTINGS), Catalog(), a_policy()
    assert judged(judge, stored, of=bindings(), catalog=catalog).fresh is not None
    assert judged(judge, stored, of=bindings(), catalog=catalog, verdict=Rejected("no")).fresh is None
    assert judged(judge, stored, of=bindings(), catalog=catalog).fresh is not None


def test_an_answer_to_another_policy_is_none_to_this() -> None:
    judge, catalog, stored = Judge(SETTINGS), Catalog(), a_policy()
    judged(judge, stored, of=bindings(), catalog=catalog)
    judged(judge, a_policy("another", config={"mode": "redact"}), of=bindings(), catalog=catalog)
    judged(judge, stored, of=bindings(), catalog=catalog)
    assert judge.compilations == 2


def test_a_binding_it_selects_counts_and_no_other() -> None:
    judge, stored = Judge(SETTINGS), a_policy()
    judged(judge, stored, of=bindings())
    judged(judge, stored, of=bindings(others=3))
    assert judge.compilations == 1
    judged(judge, stored, of=bindings(max_body_bytes=4096))
    assert judge.compilations == 2
    assert judged(judge, stored, of=bind((), SETTINGS.builtins)).fresh is None


def test_last_known_good_counts_and_what_is_pending_where_a_binding_is_missing() -> None:
    judge, stored, none = Judge(SETTINGS), a_policy(), bind((), SETTINGS.builtins)
    accepted = StoredRevision(number=1, epoch=1, digest=a_revision().digest, revision=a_revision())
    pending = an_unreachable_registration()
    seen = [
        judged(judge, stored, of=none, accepted=found, registry=registry).compiled
        for found, registry in ((None, None), (accepted, None), (None, pending))
    ]
    assert len({id(s) for s in seen}) == 3
    assert seen[2] is not None
    assert "acme" in str(seen[2].report.violations[0])


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Stored]:
    """The policies that were read, each time."""
    found = list[Stored]()

    def noted(stored: Stored) -> tuple[PolicyDraft, list[Violation]]:
        found.append(stored)
        return draft_policy(stored)

    monkeypatch.setattr(subject, "draft_policy", noted)
    return found


def settled(judge: Judge, *, of: Bindings) -> PolicyDecision:
    """A policy whose spec is accepted."""
    fresh = judged(judge, a_policy(), of=of).fresh
    assert fresh is not None
    accepted = StoredRevision(number=1, epoch=1, digest=fresh.digest, revision=fresh)
    decision = at(judge, a_policy(), of=of, accepted=accepted)
    assert is_settled(decision)
    return decision


def is_settled(decision: PolicyDecision) -> bool:
    """Whether what is accepted is what the spec compiles to, and nobody is to be asked."""
    assert decision.accepted is not None
    is_current = decision.compiled is not None and decision.compiled.revision is decision.accepted.revision
    return is_current and decision.fresh is None and decision.questions == ()


def at(
    judge: Judge, stored: Stored, *, of: Bindings, accepted: StoredRevision | None, catalog: Catalog | None = None
) -> PolicyDecision:
    """Judged with the catalog as it is."""
    catalog = Catalog() if catalog is None else catalog
    around = judge.around(Registry(registrations=(), bindings=of), catalog)
    return judge.decide(stored, catalog, around=around, accepted=accepted)


def test_what_is_accepted_is_held_once_and_not_read_again_for_what_does_not_concern_it(reads: list[Stored]) -> None:
    judge = Judge(SETTINGS)
    before = settled(judge, of=bindings())
    assert before.compiled is not None
    assert before.accepted is not None
    assert before.compiled.revision is before.accepted.revision
    reads.clear()
    catalog = Catalog()
    catalog.decided(questions(draft_policy(a_policy("other"))[0], bindings())[0].key, Accepted(), now=NOW)
    catalog.version += 7
    status = replace(a_policy(), resource_version="2", status={"observedGeneration": 1})
    after = at(judge, status, of=bindings(others=2), accepted=before.accepted, catalog=catalog)
    assert after.compiled is before.compiled
    assert after.stored is status
    assert reads == []


def test_what_is_valid_is_neither_read_nor_compiled_again_to_be_accepted(reads: list[Stored]) -> None:
    judge, catalog = Judge(SETTINGS), Catalog()
    waiting = at(judge, a_policy(), of=bindings(), accepted=None, catalog=catalog)
    catalog.decided(waiting.questions[0].key, Accepted(), now=NOW)
    fresh = at(judge, a_policy(), of=bindings(), accepted=None, catalog=catalog)
    catalog.version += 1
    again = at(judge, a_policy(), of=bindings(), accepted=None, catalog=catalog)
    assert (again.compiled, again.questions) == (fresh.compiled, waiting.questions)
    assert fresh.fresh is not None
    accepted = StoredRevision(number=1, epoch=1, digest=fresh.fresh.digest, revision=replace(fresh.fresh))
    assert is_settled(at(judge, a_policy(), of=bindings(), accepted=accepted, catalog=catalog))
    assert (len(reads), judge.compilations) == (1, 1)


def test_what_is_accepted_is_read_again_if_its_service_changes(reads: list[Stored]) -> None:
    judge = Judge(SETTINGS)
    accepted = settled(judge, of=bindings()).accepted
    reads.clear()
    assert is_settled(at(judge, a_policy(), of=bindings(max_body_bytes=4096), accepted=accepted))
    renewed = bind((an_accepted_registration(manifest=a_manifest(a_binding(timeout="1s"))),), SETTINGS.builtins)
    asked = at(judge, a_policy(), of=renewed, accepted=accepted)
    assert (asked.compiled, len(asked.questions)) == (None, 1)
    missing = at(judge, a_policy(), of=bind((), SETTINGS.builtins), accepted=accepted)
    assert missing.compiled is not None
    assert not missing.compiled.report.is_valid
    assert is_settled(at(judge, a_policy(), of=bindings(), accepted=accepted))
    # Once for the new limit, and once for what followed until it was settled again.
    assert len(reads) == 2


def test_a_no_takes_what_is_accepted_and_an_outage_does_not() -> None:
    judge, catalog = Judge(SETTINGS), Catalog()
    before = settled(judge, of=bindings())
    (key,) = (q.key for q in questions(judge.read(a_policy()).draft, bindings()))
    compilations = judge.compilations
    catalog.decided(key, Unreachable(Outage.CALL_FAILED), now=NOW)
    during = at(judge, a_policy(), of=bindings(), accepted=before.accepted, catalog=catalog)
    assert (during.compiled, judge.compilations) == (before.compiled, compilations)
    catalog.decided(key, Rejected("no"), now=NOW)
    after = at(judge, a_policy(), of=bindings(), accepted=before.accepted, catalog=catalog)
    assert after.compiled is not None
    assert [v.reason for v in after.compiled.report.violations] == [Reason.CONFIG_REJECTED]


def test_what_nobody_asks_any_more_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_SPARE", 2)
    judge = Judge(SETTINGS)
    for number in range(5):
        judged(judge, a_policy(config={"n": number}, generation=number), of=bindings())
        judge.keep(frozenset({a_policy().uid}))
    assert len(judge._wants) <= 3


def test_what_is_gone_is_forgotten() -> None:
    judge = Judge(SETTINGS)
    first = judged(judge, a_policy(), of=bindings())
    judge.keep(frozenset())
    assert not judge.knows(a_policy())
    assert judged(judge, a_policy(), of=bindings()) is not first
    assert judge.compilations == 2


def test_what_a_never_accepted_policy_closes_is_made_once() -> None:
    judge = Judge(SETTINGS)
    policy = a_policy(middleware="acme/nobody")
    fallbacks = [judged(judge, replace(policy, status={"n": n}), of=bindings(others=n)).fallback for n in range(3)]
    assert fallbacks[0] is not None
    assert {id(f) for f in fallbacks} == {id(fallbacks[0])}


def test_an_older_policy_of_one_spec_is_another() -> None:
    judge = Judge(SETTINGS)
    judged(judge, a_policy(), of=bindings())
    assert not judge.knows(a_policy(created_at=NOW - timedelta(days=1)))

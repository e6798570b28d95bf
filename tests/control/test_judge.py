"""What is judged is judged again only when something it depends on has changed."""

from dataclasses import replace

from supervisor_middleware.compiler.binding import Bindings, bind
from supervisor_middleware.compiler.pipeline import CompiledPolicy
from supervisor_middleware.compiler.questions import questions
from supervisor_middleware.control.judge import Judge
from supervisor_middleware.model.snapshot import Stored
from supervisor_middleware.model.verdict import Accepted, Rejected, Verdict
from tests.builders import a_policy, a_revision, an_accepted_registration, some_settings

SETTINGS = some_settings()


def bindings(*, max_body_bytes: int = 65536) -> Bindings:
    return bind((an_accepted_registration(max_body_bytes=max_body_bytes),), SETTINGS.builtins)


def judged(judge: Judge, stored: Stored, *, of: Bindings, verdict: Verdict | None = None) -> CompiledPolicy:
    read = judge.read(stored)
    verdicts = {q.key: verdict or Accepted() for q in questions(read.draft, of)}
    return judge.compile(read, bindings=judge.same(of), verdicts=verdicts, accepted=None, pending=())


def test_an_unchanged_policy_is_judged_once() -> None:
    judge = Judge(SETTINGS)
    first = judged(judge, a_policy(), of=bindings())
    # A new object with the same spec, as after every status write; bindings made anew, as at every pass.
    again = replace(a_policy(), resource_version="2", status={"observedGeneration": 1})
    assert judge.knows(again)
    assert judged(judge, again, of=bindings()) is first


def test_an_edit_is_judged_anew() -> None:
    judge = Judge(SETTINGS)
    first = judged(judge, a_policy(), of=bindings())
    edited = a_policy(generation=2, order=7)
    assert not judge.knows(edited)
    second = judged(judge, edited, of=bindings())
    assert second.digest != first.digest
    assert second.draft.generation == 2


def test_a_policy_created_again_under_its_name_is_another() -> None:
    judge = Judge(SETTINGS)
    judged(judge, a_policy(), of=bindings())
    assert not judge.knows(replace(a_policy(), uid="another"))


def test_another_answer_is_another_judgement() -> None:
    judge = Judge(SETTINGS)
    assert judged(judge, a_policy(), of=bindings()).revision is not None
    assert judged(judge, a_policy(), of=bindings(), verdict=Rejected("no")).revision is None
    assert judged(judge, a_policy(), of=bindings()).revision is not None


def test_other_bindings_are_another_judgement() -> None:
    judge = Judge(SETTINGS)
    assert judged(judge, a_policy(), of=bindings()).revision is not None
    assert judged(judge, a_policy(), of=bind((), SETTINGS.builtins)).revision is None


def test_last_known_good_and_what_is_pending_count_too() -> None:
    judge = Judge(SETTINGS)
    read, of = judge.read(a_policy()), judge.same(bind((), SETTINGS.builtins))
    seen = [
        judge.compile(read, bindings=of, verdicts={}, accepted=accepted, pending=pending)
        for accepted, pending in ((None, ()), (a_revision(), ()), (None, ("acme",)))
    ]
    assert len({id(s) for s in seen}) == 3
    assert "acme" in str(seen[2].report.violations[0])


def test_what_is_gone_is_forgotten() -> None:
    judge = Judge(SETTINGS)
    first = judged(judge, a_policy(), of=bindings())
    judge.keep(frozenset())
    assert not judge.knows(a_policy())
    assert judged(judge, a_policy(), of=bindings()) is not first


def test_what_a_never_accepted_policy_closes_is_made_once() -> None:
    judge = Judge(SETTINGS)
    assert judge.read(a_policy()).fallback is judge.read(a_policy()).fallback

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.audit.events import Bypassed, Failed, Found, Invoked, Severity
from supervisor_middleware.model.evaluation import (
    Decision,
    ExistingHeader,
    FailureCode,
    Finding,
    Header,
    HeaderMutation,
    OnError,
    RemoveHeader,
    RequestContext,
    Result,
    WriteHeader,
)
from supervisor_middleware.model.generation import Stage
from supervisor_middleware.model.limits import (
    CHAIN_TIMEOUT,
    MAX_BODY_BYTES,
    MAX_CONFIG_BYTES,
    MAX_CONTEXT_BYTES,
    MAX_FINDINGS,
    MAX_HEADER_LINES,
    MAX_HEADERS_BYTES,
    MAX_METADATA_BYTES,
    MAX_REASON_BYTES,
    MAX_STAGES,
    MAX_TARGET_BYTES,
)
from supervisor_middleware.model.revision import Unresolved
from supervisor_middleware.model.struct_size import struct_size
from supervisor_middleware.supervisor.chain import Answer, Ask, begin, body_cap, resume, uninspectable
from supervisor_middleware.supervisor.exchange import Allowed, Body, Cause, Denied, Overflowed, Request, Unread, Whole
from supervisor_middleware.wire.sizes import (
    encoded_context_size,
    encoded_headers_size,
    encoded_target_size,
)
from tests.supervisor.builders import CONTEXT, Played, allow, deny, fail_open, request, stage, target

MARK = WriteHeader(name="x-openshell-middleware-mark", value="1", on_existing=ExistingHeader.APPEND)
HEADERS = (Header("accept", "a"), Header("authorization", "secret"), Header("accept", "b"))


def test_empty_chain_allows_the_original_bytes() -> None:
    assert Played((), request()).outcome == Allowed()


def test_later_stage_sees_what_earlier_ones_accepted() -> None:
    played = Played(
        (stage("first"), stage("second"), stage("third")),
        request(b"original", headers=HEADERS),
        {"first": allow(b"from first", mutations=(MARK,)), "second": allow(mutations=(RemoveHeader(name="accept"),))},
    )
    visible = (HEADERS[0], HEADERS[2])
    assert [(a.evaluation.body, a.evaluation.headers) for a in played.asks] == [
        (b"original", visible),
        (b"from first", (*visible, Header(MARK.name, "1"))),
        (b"from first", (Header(MARK.name, "1"),)),
    ]
    assert isinstance(played.outcome, Allowed)
    assert played.outcome.body == b"from first"
    assert played.outcome.mutations == (MARK, RemoveHeader(name="accept"))


def test_stage_is_asked_for_its_own_binding_and_config() -> None:
    first = stage("first", binding="acme/one", config={"mode": "a"})
    second = stage("second", binding="acme/one", config={"mode": "b"})
    played = Played((first, second), request())
    assert [(a.evaluation.binding, a.evaluation.config) for a in played.asks] == [
        ("acme/one", {"mode": "a"}),
        ("acme/one", {"mode": "b"}),
    ]


@pytest.mark.parametrize(("answer", "body"), [(allow(), None), (allow(b""), b""), (allow(b"new"), b"new")])
def test_no_body_keeps_the_previous_one_and_empty_bytes_replace_it(answer: Result, body: bytes | None) -> None:
    outcome = Played((stage(),), request(b"old"), {"redact": answer}).outcome
    assert isinstance(outcome, Allowed)
    assert outcome.body == body


@pytest.mark.parametrize("make", [stage, fail_open])
def test_deny_is_final_whatever_the_failure_policy(make: Callable[[str], Stage]) -> None:
    played = Played((make("guard"), stage("next")), request(), {"guard": deny("secret_found")})
    assert played.asked == ["guard"]
    assert isinstance(played.outcome, Denied)
    assert (played.outcome.cause, played.outcome.key, played.outcome.policy, played.outcome.reason_code) == (
        Cause.DENIED,
        "guard",
        "team/policy",
        "secret_found",
    )


def test_invalid_reason_code_of_a_deny_is_left_out() -> None:
    outcome = Played((stage(),), request(), {"redact": deny("Not A Code")}).outcome
    assert isinstance(outcome, Denied)
    assert (outcome.cause, outcome.reason_code) == (Cause.DENIED, "")


def test_deny_keeps_findings_and_metadata_and_ignores_transformations() -> None:
    invalid = RemoveHeader(name="host")
    answer = deny(body=b"x", mutations=(invalid,), findings=(Finding(type="t"),), metadata={"note": "n"})
    outcome = Played((stage("a"), stage("b")), request(), {"a": allow(metadata={"k": "v"}), "b": answer}).outcome
    assert isinstance(outcome, Denied)
    assert outcome.metadata == {"a": {"k": "v"}, "b": {"note": "n"}}
    assert [e.decision for e in outcome.events if isinstance(e, Invoked)] == [Decision.ALLOW, Decision.DENY]
    assert not any(e.is_transformed for e in outcome.events if isinstance(e, Invoked))
    assert [e.type for e in outcome.events if isinstance(e, Found)] == ["acme.finding"]


def test_deny_whose_observations_are_over_a_limit_still_denies() -> None:
    answer = deny(findings=(Finding(type="t"),) * (MAX_FINDINGS + 1), metadata={"note": "n"})
    outcome = Played((fail_open("a"),), request(), {"a": answer}).outcome
    assert isinstance(outcome, Denied)
    assert (outcome.cause, outcome.metadata) == (Cause.DENIED, {})
    assert not [e for e in outcome.events if isinstance(e, Found)]


def test_failed_required_stage_stops_and_denies() -> None:
    played = Played((stage("a"), stage("b")), request(), {"a": FailureCode.SERVICE_ERROR})
    assert played.asked == ["a"]
    assert isinstance(played.outcome, Denied)
    assert (played.outcome.cause, played.outcome.key, played.outcome.code) == (
        Cause.FAILED,
        "a",
        FailureCode.SERVICE_ERROR,
    )
    (event,) = played.outcome.events
    assert isinstance(event, Failed)
    assert (event.code, event.latency) == (FailureCode.SERVICE_ERROR, timedelta(milliseconds=1))


def test_failed_fail_open_stage_is_bypassed_and_changes_nothing() -> None:
    # One valid and one invalid mutation, with a body and metadata beside them: none of it applies.
    answer = allow(b"partial", mutations=(MARK, RemoveHeader(name="host")), metadata={"k": "v"})
    played = Played((fail_open("a"), stage("b")), request(b"old", headers=HEADERS), {"a": answer})
    assert played.asks[1].evaluation.body == b"old"
    assert played.asks[1].evaluation.headers == played.asks[0].evaluation.headers
    assert isinstance(played.outcome, Allowed)
    assert (played.outcome.body, played.outcome.mutations, played.outcome.metadata) == (None, (), {})
    assert [(type(e), getattr(e, "code", None)) for e in played.outcome.events] == [
        (Bypassed, FailureCode.MUTATION_PROTECTED_HEADER),
        (Invoked, None),
    ]


def test_unresolved_stage_follows_its_failure_policy_without_being_asked() -> None:
    missing = Unresolved.REGISTRATION_MISSING
    played = Played((fail_open("a", unresolved=missing), stage("b")), request())
    assert played.asked == ["b"]
    assert [e.code for e in played.outcome.events if isinstance(e, Bypassed)] == [FailureCode.UNRESOLVED_STAGE]
    outcome = Played((stage("a", unresolved=missing),), request()).outcome
    assert isinstance(outcome, Denied)
    assert outcome.code is FailureCode.UNRESOLVED_STAGE


def test_ten_stages_run_and_eleven_are_refused_without_asking() -> None:
    ten = tuple(fail_open(f"s{i}") for i in range(MAX_STAGES))
    assert len(Played(ten, request()).asked) == MAX_STAGES
    eleven = (*ten, fail_open("s10"))
    played = Played(eleven, request())
    assert played.asked == []
    assert isinstance(played.outcome, Denied)
    assert (played.outcome.cause, played.outcome.key, played.outcome.code) == (
        Cause.FAILED,
        "",
        FailureCode.STAGES_OVER_CAPACITY,
    )
    assert [e.stage.key for e in played.outcome.events if isinstance(e, Failed)] == ["s10"]
    assert isinstance(uninspectable(eleven, context=CONTEXT, target=target()), Denied)


def test_stages_that_cannot_run_come_besides_the_ten() -> None:
    ten = tuple(stage(f"s{i}") for i in range(MAX_STAGES))
    conflicted = tuple(fail_open(f"rest{i}", unresolved=Unresolved.CONFLICTED) for i in range(4))
    played = Played((*ten, *conflicted), request())
    assert len(played.asked) == MAX_STAGES
    assert isinstance(played.outcome, Allowed)
    assert [e.stage.key for e in played.outcome.events if isinstance(e, Bypassed)] == [s.key for s in conflicted]
    closed = Played((*ten, *conflicted[:3], stage("rest3", unresolved=Unresolved.CONFLICTED)), request()).outcome
    assert isinstance(closed, Denied)
    assert (closed.key, closed.code) == ("rest3", FailureCode.UNRESOLVED_STAGE)


def test_every_finding_of_a_full_chain_is_counted() -> None:
    ten = tuple(stage(f"s{i}") for i in range(MAX_STAGES))
    full = allow(findings=(Finding(type="t"),) * MAX_FINDINGS)
    played = Played(ten, request(), {s.key: full for s in ten})
    assert sum(e.count for e in played.outcome.events if isinstance(e, Found)) == 320


# --- deadlines ---


def test_deadline_is_the_stages_own_or_what_is_left_of_the_chain() -> None:
    slow = tuple(fail_open(f"s{i}", timeout=timedelta(seconds=20)) for i in range(3))
    played = Played(slow, request(), latency=timedelta(seconds=18))
    assert [a.deadline for a in played.asks] == [timedelta(seconds=20), CHAIN_TIMEOUT - timedelta(seconds=18)]
    assert [e.code for e in played.outcome.events if isinstance(e, Bypassed)] == [FailureCode.CHAIN_TIMEOUT]


def test_timeout_of_a_stage_that_was_cut_short_is_the_chains() -> None:
    stages = (stage("a", timeout=timedelta(seconds=20)), stage("b", timeout=timedelta(seconds=20)))
    answers: dict[str, Answer] = {"b": FailureCode.TIMEOUT}
    outcome = Played(stages, request(), answers, latency=timedelta(seconds=15)).outcome
    assert isinstance(outcome, Denied)
    assert outcome.code is FailureCode.CHAIN_TIMEOUT
    outcome = Played(stages, request(), answers, latency=timedelta(seconds=1)).outcome
    assert isinstance(outcome, Denied)
    assert outcome.code is FailureCode.TIMEOUT


def test_clock_that_steps_back_gives_no_time_back() -> None:
    played = Played((stage("a"), stage("b", timeout=timedelta(seconds=30))), request(), latency=timedelta(seconds=-5))
    assert played.asks[1].deadline == CHAIN_TIMEOUT
    assert [e.latency for e in played.outcome.events if isinstance(e, Invoked)] == [timedelta(0), timedelta(0)]


# --- request-side limits: at the limit the stage is asked, one over it is not ---


def config_of(size: int) -> dict[str, str]:
    config = {"k": "x" * size}
    return {"k": "x" * (2 * size - struct_size(config))}


def context_of(size: int) -> RequestContext:
    context = replace(CONTEXT, sandbox_id="x" * size)
    return replace(context, sandbox_id="x" * (2 * size - encoded_context_size(context)))


def target_request(size: int) -> Request:
    where = target(path="", query="x" * size)
    return request(where=replace(where, query="x" * (2 * size - encoded_target_size(where))))


def headers_of(size: int) -> tuple[Header, ...]:
    header = Header("accept", "x" * size)
    return (Header("accept", "x" * (2 * size - encoded_headers_size((header,)))),)


REQUEST_LIMITS: list[tuple[Callable[[int], tuple[Stage, Request]], int, FailureCode]] = [
    (
        lambda n: (fail_open(config=config_of(n)), request()),
        MAX_CONFIG_BYTES,
        FailureCode.REQUEST_CONFIG_OVER_CAPACITY,
    ),
    (
        lambda n: (fail_open(), request(context=context_of(n))),
        MAX_CONTEXT_BYTES,
        FailureCode.REQUEST_CONTEXT_OVER_CAPACITY,
    ),
    (lambda n: (fail_open(), target_request(n)), MAX_TARGET_BYTES, FailureCode.REQUEST_TARGET_OVER_CAPACITY),
    (
        lambda n: (fail_open(), request(headers=(Header("accept", "a"),) * n)),
        MAX_HEADER_LINES,
        FailureCode.REQUEST_HEADER_COUNT_OVER_CAPACITY,
    ),
    (
        lambda n: (fail_open(), request(headers=headers_of(n))),
        MAX_HEADERS_BYTES,
        FailureCode.REQUEST_HEADER_BYTES_OVER_CAPACITY,
    ),
    (
        lambda n: (fail_open(max_body_bytes=1000), request(b"x" * n)),
        1000,
        FailureCode.REQUEST_BODY_OVER_CAPACITY,
    ),
    (lambda n: (fail_open(), request(b"x" * n)), MAX_BODY_BYTES, FailureCode.REQUEST_BODY_OVER_CAPACITY),
]


@pytest.mark.parametrize(("make", "limit", "code"), REQUEST_LIMITS)
def test_request_at_a_limit_is_asked_and_one_over_it_is_not(
    make: Callable[[int], tuple[Stage, Request]], limit: int, code: FailureCode
) -> None:
    at_limit, what = make(limit)
    assert Played((at_limit,), what).asked == ["trace"]
    over, what = make(limit + 1)
    played = Played((over,), what)
    assert played.asked == []
    assert [e.code for e in played.outcome.events if isinstance(e, Bypassed)] == [code]
    required = replace(over, on_error=OnError.FAIL_CLOSED)
    denied = Played((required,), what).outcome
    assert isinstance(denied, Denied)
    assert (denied.cause, denied.code) == (Cause.FAILED, code)


def test_only_headers_a_stage_may_see_count() -> None:
    headers = (Header("accept", "a"),) * MAX_HEADER_LINES + (Header("cookie", "c" * MAX_HEADERS_BYTES),)
    assert Played((stage(),), request(headers=headers)).asked == ["redact"]


def test_stage_with_a_smaller_limit_fails_alone() -> None:
    stages = (fail_open("small", max_body_bytes=1024), stage("large", max_body_bytes=MAX_BODY_BYTES))
    played = Played(stages, request(b"x" * 10_240))
    assert played.asked == ["large"]
    assert isinstance(played.outcome, Allowed)


# --- response-side limits (`wire.result_limits`): at the limit the answer is taken, one over it the stage failed ---


RESPONSE_LIMITS: list[tuple[Callable[[int], Result], int, FailureCode]] = [
    (lambda n: allow(b"x" * n), 1000, FailureCode.RESPONSE_BODY_OVER_CAPACITY),
    (lambda n: allow(findings=(Finding(type="t"),) * n), MAX_FINDINGS, FailureCode.FINDINGS_OVER_CAPACITY),
    (
        lambda n: allow(mutations=(RemoveHeader(name="x"),) * n),
        64,
        FailureCode.MUTATION_COUNT_OVER_CAPACITY,
    ),
]


@pytest.mark.parametrize(("make", "limit", "code"), RESPONSE_LIMITS)
def test_answer_at_a_limit_is_taken_and_one_over_it_is_a_failure(
    make: Callable[[int], Result], limit: int, code: FailureCode
) -> None:
    stages = (fail_open(max_body_bytes=1000),)
    taken = Played(stages, request(b"old"), {"trace": make(limit)}).outcome
    assert not [e for e in taken.events if isinstance(e, Bypassed)]
    over = Played(stages, request(b"old"), {"trace": make(limit + 1)}).outcome
    assert isinstance(over, Allowed)
    assert over.body is None
    assert [e.code for e in over.events if isinstance(e, Bypassed)] == [code]


def test_allow_with_an_invalid_reason_code_is_a_failure() -> None:
    answer = replace(allow(), reason_code="Not A Code")
    outcome = Played((stage(),), request(), {"redact": answer}).outcome
    assert isinstance(outcome, Denied)
    assert outcome.code is FailureCode.REASON_CODE_INVALID
    valid = replace(allow(), reason_code="a_code")
    assert isinstance(Played((stage(),), request(), {"redact": valid}).outcome, Allowed)


# --- bodies and traffic that cannot be shown ---


def test_unread_body_passes_when_every_stage_is_fail_open() -> None:
    stages = (fail_open("a"), fail_open("b", unresolved=Unresolved.CONFLICTED))
    played = Played(stages, request(Unread(declared=10**9)))
    assert played.asked == []
    assert isinstance(played.outcome, Allowed)
    assert [(e.stage.key, e.code) for e in played.outcome.events if isinstance(e, Bypassed)] == [
        ("a", FailureCode.REQUEST_BODY_OVER_CAPACITY),
        ("b", FailureCode.UNRESOLVED_STAGE),
    ]


def test_unread_body_is_denied_for_the_first_required_stage() -> None:
    outcome = Played((fail_open("a"), stage("b"), stage("c")), request(Unread(declared=10**9))).outcome
    assert isinstance(outcome, Denied)
    assert (outcome.cause, outcome.key, outcome.code) == (Cause.FAILED, "b", FailureCode.REQUEST_BODY_OVER_CAPACITY)


@pytest.mark.parametrize("stages", [(), (fail_open("a"), fail_open("b")), (stage("a"),)])
def test_overflowed_body_is_always_denied(stages: tuple[Stage, ...]) -> None:
    outcome = Played(stages, request(Overflowed())).outcome
    assert isinstance(outcome, Denied)
    assert (outcome.cause, outcome.key, outcome.code) == (Cause.FAILED, "", FailureCode.REQUEST_BODY_OVER_CAPACITY)
    assert len(outcome.events) == min(len(stages), 1)


def test_uninspectable_traffic_passes_only_when_every_stage_is_fail_open() -> None:
    passed = uninspectable((fail_open("a"), fail_open("b")), context=CONTEXT, target=target())
    assert isinstance(passed, Allowed)
    assert [e.code for e in passed.events if isinstance(e, Bypassed)] == [FailureCode.UNINSPECTABLE] * 2
    denied = uninspectable((fail_open("a"), stage("b")), context=CONTEXT, target=target())
    assert isinstance(denied, Denied)
    assert (denied.cause, denied.key, denied.code) == (Cause.FAILED, "b", FailureCode.UNINSPECTABLE)
    assert uninspectable((), context=CONTEXT, target=target()) == Allowed()


def test_body_cap_is_the_largest_resolved_limit() -> None:
    gone = Unresolved.REGISTRATION_MISSING
    assert body_cap(()) == 0
    assert body_cap((stage(unresolved=gone),)) == 0
    assert body_cap((stage(max_body_bytes=10), stage(max_body_bytes=20), stage(unresolved=gone))) == 20
    assert body_cap((stage(max_body_bytes=2 * MAX_BODY_BYTES),)) == MAX_BODY_BYTES


# --- metadata and findings ---


def test_metadata_is_kept_under_the_map_key() -> None:
    stages = (stage("anonymize", binding="acme/x"), stage("budget", binding="acme/x"), stage("plain"))
    level = allow(metadata={"sensitivity": "high"})
    outcome = Played(
        stages, request(), {"anonymize": level, "budget": allow(metadata={"sensitivity": "low"})}
    ).outcome
    assert outcome.metadata == {"anonymize": {"sensitivity": "high"}, "budget": {"sensitivity": "low"}}


def test_two_policies_with_one_key_lose_none_of_their_metadata() -> None:
    stages = (stage("same", policy="team/a"), stage("same", policy="team/b"))
    step = begin(stages, request())
    assert isinstance(step, Ask)
    step = resume(step, allow(metadata={"one": "1", "both": "a"}), latency=timedelta(0))
    assert isinstance(step, Ask)
    outcome = resume(step, allow(metadata={"two": "2", "both": "b"}), latency=timedelta(0))
    assert isinstance(outcome, Allowed)
    assert outcome.metadata == {"same": {"one": "1", "two": "2", "both": "b"}}


def found(findings: tuple[Finding, ...], *, service: str | None) -> list[tuple[str, int, Severity]]:
    outcome = Played((stage(service=service),), request(), {"redact": allow(findings=findings)}).outcome
    return [(e.type, e.count, e.severity) for e in outcome.events if isinstance(e, Found)]


def test_findings_of_a_service_keep_only_count_and_known_severity() -> None:
    findings = (
        Finding(type="pii.alice@example.com", label="alice", count=2, severity="high"),
        Finding(type="other", count=3, severity="HIGH"),
        Finding(type="other", count=5, severity="alice"),
        Finding(type="other", count=7, severity="low"),
    )
    assert found(findings, service="acme") == [
        ("acme.finding", 5, Severity.HIGH),
        ("acme.finding", 5, Severity.MEDIUM),
        ("acme.finding", 7, Severity.LOW),
    ]


def test_findings_of_a_builtin_keep_their_type() -> None:
    findings = (Finding(type="regex.openai", severity="medium"), Finding(type="not a type", severity="high"))
    assert found(findings, service=None) == [
        ("regex.openai", 1, Severity.MEDIUM),
        ("invalid", 1, Severity.HIGH),
    ]


def test_added_up_count_stays_a_uint32() -> None:
    findings = (Finding(type="t", count=2**32 - 1),) * 2
    assert found(findings, service="acme") == [("acme.finding", 2**32 - 1, Severity.MEDIUM)]


def test_invoked_says_whether_the_request_was_transformed() -> None:
    stages = (stage("body"), stage("header"), stage("neither"))
    outcome = Played(stages, request(), {"body": allow(b""), "header": allow(mutations=(MARK,))}).outcome
    assert [e.is_transformed for e in outcome.events if isinstance(e, Invoked)] == [True, True, False]


# --- laws ---

CODES = st.sampled_from(FailureCode)
CHOICES: list[HeaderMutation] = [
    MARK,
    RemoveHeader(name="accept"),
    RemoveHeader(name="host"),
    replace(MARK, value="\n"),
]
MUTATIONS = st.lists(st.sampled_from(CHOICES), max_size=3).map(tuple)
RESULTS = st.builds(
    Result,
    decision=st.sampled_from(Decision),
    reason=st.sampled_from(["", "r" * (MAX_REASON_BYTES + 1)]),
    reason_code=st.sampled_from(["", "code", "No Code"]),
    body=st.sampled_from([None, b"", b"new", b"x" * 101]),
    mutations=MUTATIONS,
    findings=st.sampled_from([(), (Finding(type="t"),), (Finding(type="t"),) * 33]),
    metadata=st.sampled_from([{}, {"k": "v"}, {"k": "v" * (MAX_METADATA_BYTES + 1)}]),
)
ANSWERS = st.one_of(CODES, RESULTS)
STAGES = st.lists(
    st.tuples(st.sampled_from(OnError), st.sampled_from([None, None, None, Unresolved.CONFLICTED]), ANSWERS),
    max_size=5,
)
BODIES = st.sampled_from([Whole(b""), Whole(b"old"), Whole(b"x" * 101), Unread(declared=9), Overflowed()])


def played(drawn: list[tuple[OnError, Unresolved | None, Answer]], body: Body) -> Played:
    stages = tuple(
        stage(f"s{i}", on_error=on_error, unresolved=why, max_body_bytes=100)
        for i, (on_error, why, _) in enumerate(drawn)
    )
    answers = {f"s{i}": answer for i, (_, _, answer) in enumerate(drawn)}
    return Played(stages, request(body, headers=HEADERS), answers)


@given(drawn=STAGES, body=BODIES)
def test_deny_is_never_turned_into_an_allow(
    drawn: list[tuple[OnError, Unresolved | None, Answer]], body: Body
) -> None:
    run = played(drawn, body)
    answers = [drawn[int(key[1:])][2] for key in run.asked]
    if any(isinstance(a, Result) and a.decision is Decision.DENY for a in answers):
        assert isinstance(run.outcome, Denied)
        assert run.outcome.cause is Cause.DENIED


@given(drawn=STAGES, body=BODIES)
def test_allowed_chain_without_its_bypassed_stages_gives_the_same_request(
    drawn: list[tuple[OnError, Unresolved | None, Answer]], body: Body
) -> None:
    whole = played(drawn, body)
    if not isinstance(whole.outcome, Allowed) or not isinstance(body, Whole):
        return
    bypassed = {e.stage.key for e in whole.outcome.events if isinstance(e, Bypassed)}
    rest = played([d for i, d in enumerate(drawn) if f"s{i}" not in bypassed], body)
    assert isinstance(rest.outcome, Allowed)
    assert (rest.outcome.body, rest.outcome.mutations) == (whole.outcome.body, whole.outcome.mutations)
    assert not [e for e in rest.outcome.events if isinstance(e, Bypassed)]


@given(drawn=STAGES, body=BODIES)
def test_allowed_means_every_required_stage_gave_a_valid_allow(
    drawn: list[tuple[OnError, Unresolved | None, Answer]], body: Body
) -> None:
    run = played(drawn, body)
    if isinstance(run.outcome, Allowed):
        required = {f"s{i}" for i, (on_error, _, _) in enumerate(drawn) if on_error is OnError.FAIL_CLOSED}
        allowed = {e.stage.key for e in run.outcome.events if isinstance(e, Invoked) and e.decision is Decision.ALLOW}
        assert required <= allowed

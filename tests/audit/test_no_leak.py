"""RFC 0009 "Audit and logging": "These events must never leak the content they describe." """

import json
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.audit.ocsf import records
from supervisor_middleware.model.evaluation import (
    Decision,
    ExistingHeader,
    FailureCode,
    Finding,
    Header,
    HeaderMutation,
    OnError,
    RemoveHeader,
    Result,
    WriteHeader,
)
from supervisor_middleware.supervisor.chain import Answer, uninspectable
from supervisor_middleware.supervisor.exchange import Whole
from tests.supervisor.builders import CONTEXT, Played, request, stage, target

CANARY = "canary-5f1e"
TEXTS = st.sampled_from([CANARY, f"x{CANARY}y", f"{CANARY}\n{CANARY}", CANARY * 3000])
MUTATIONS: st.SearchStrategy[list[HeaderMutation]] = st.lists(
    st.one_of(
        st.builds(RemoveHeader, name=TEXTS),
        st.builds(
            WriteHeader,
            name=TEXTS.map(lambda t: "x-openshell-middleware-" + t),
            value=TEXTS,
            on_existing=st.sampled_from(ExistingHeader),
        ),
    ),
    max_size=2,
)
FINDINGS = st.builds(Finding, type=TEXTS, label=TEXTS, confidence=TEXTS, severity=st.one_of(TEXTS, st.just("high")))
RESULTS = st.builds(
    Result,
    decision=st.sampled_from(Decision),
    reason=TEXTS,
    reason_code=st.one_of(TEXTS, st.just("")),
    body=st.one_of(st.none(), TEXTS.map(str.encode)),
    mutations=MUTATIONS.map(tuple),
    findings=st.lists(FINDINGS, max_size=3).map(tuple),
    metadata=st.dictionaries(TEXTS, TEXTS, max_size=2),
)
ANSWERS = st.one_of(st.sampled_from(FailureCode), RESULTS)


@given(drawn=st.lists(st.tuples(st.sampled_from(OnError), ANSWERS), min_size=1, max_size=3), text=TEXTS)
def test_no_event_holds_anything_of_content_config_query_or_a_services_words(
    drawn: list[tuple[OnError, Answer]], text: str
) -> None:
    stages = tuple(
        stage(f"s{i}", on_error=on_error, config={text: [text]}, max_body_bytes=4096)
        for i, (on_error, _) in enumerate(drawn)
    )
    what = request(
        Whole(text.encode()),
        headers=(Header("x-api-key", text), Header(text, "1"), Header("authorization", text)),
        where=target(path=f"/{text}", query=text),
    )
    events = Played(stages, what, {f"s{i}": answer for i, (_, answer) in enumerate(drawn)}).outcome.events
    events += uninspectable(stages, context=CONTEXT, target=what.target).events
    assert events
    for event in events:
        written = records(event, time=datetime.now(UTC), product_version="1", device="sandbox")
        assert CANARY not in json.dumps(written)
        assert CANARY not in repr(event)


def test_no_repr_on_the_way_shows_content() -> None:
    what = request(Whole(CANARY.encode()), headers=(Header("accept", CANARY),), where=target(query=CANARY))
    result = Result(decision=Decision.ALLOW, reason=CANARY, body=CANARY.encode(), metadata={CANARY: CANARY})
    played = Played((stage(config={"secret": CANARY}),), what, {"redact": result}, latency=timedelta(0))
    assert CANARY not in repr(what)
    assert CANARY not in repr(played.asks)
    assert CANARY not in repr(played.outcome)

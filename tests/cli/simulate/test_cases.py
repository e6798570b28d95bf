"""Reading cases: whatever stands in a file, the answer is cases or what is wrong with them."""

import asyncio
import json
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.cli.simulate.answers import Answers
from supervisor_middleware.cli.simulate.cases import AnswerSpec, CaseSpec, RequestSpec, read_cases
from supervisor_middleware.cli.simulate.expect import differences
from supervisor_middleware.cli.simulate.trace import Clock, trace
from supervisor_middleware.cli.simulate.words import outcome_words, trace_lines, value_of
from supervisor_middleware.model.generation import Generation
from tests.builders import REGEX, a_stage

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["name", "request", "host", "answers", "expect", "body", "headers", "fails", "decision"])
HOSTS = st.sampled_from(["api.a.com", "a.com:443", "[::1]", "127.1", "", "x y", "*.com"]) | TEXT
HEADERS = st.dictionaries(
    st.sampled_from(["accept", "Connection", "upgrade", "host", "content-length", "transfer-encoding"]) | TEXT,
    TEXT | st.lists(TEXT, max_size=2),
    max_size=4,
)
REQUESTS = st.builds(
    RequestSpec,
    host=HOSTS.filter(bool),
    method=st.sampled_from(["", "GET", "CONNECT"]) | TEXT,
    path=TEXT,
    headers=HEADERS,
    body=st.none() | TEXT,
)
MUTATIONS = st.fixed_dictionaries({"write": TEXT, "value": TEXT}) | st.fixed_dictionaries({"remove": TEXT})
ANSWERS = st.fixed_dictionaries(
    {"fails": st.sampled_from(["timeout", "unavailable", "invalid"])}
) | st.fixed_dictionaries(
    {"decision": st.sampled_from(["allow", "deny"])},
    optional={
        "body": TEXT,
        "headers": st.lists(MUTATIONS, max_size=2),
        "metadata": st.dictionaries(TEXT, TEXT, max_size=2),
        "reasonCode": TEXT,
        "findings": st.lists(st.fixed_dictionaries({"type": TEXT, "severity": TEXT}), max_size=2),
        "after": st.sampled_from(["0s", "400ms", "1h"]),
    },
)


@given(st.lists(st.dictionaries(FIELDS, JSON, max_size=4) | JSON, max_size=3) | JSON)
def test_any_document_is_read_or_refused(document: Any) -> None:
    content = json.dumps(document).encode()
    cases, found = read_cases(content, name="cases.yaml")
    assert all(v.path.startswith("line ") or not v.path for v in found.violations)
    if isinstance(document, list) and not found.violations:
        assert len(cases) == len(document)


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    cases, found = read_cases(content, name="cases.yaml")
    assert cases or found.violations or content


@given(REQUESTS, ANSWERS)
def test_any_request_and_any_answer_end_in_an_outcome(request: RequestSpec, answer: Any) -> None:
    stages = (
        a_stage("keys", binding=REGEX, service=None, include=["**"]),
        a_stage("asked", include=["**"], timeout=timedelta(milliseconds=500)),
        a_stage("nobody", binding="acme/nobody", include=["a.com"]),
    )
    generation, clock = Generation(stages=stages), Clock()
    case = CaseSpec(name="any", request=request, answers={"asked": AnswerSpec.model_validate(answer)})
    answers = Answers(case.answers, generation, services=None, clock=clock)
    found = asyncio.run(
        trace(
            request,
            generation,
            content=request.content,
            sandbox="here",
            sandbox_id="team-a/coder",
            choose=answers,
            clock=clock,
        )
    )
    assert differences(case, found, generation) == ()
    assert outcome_words(found).startswith(("allowed: ", "denied: 403 "))
    assert (found.upstream is None) is outcome_words(found).startswith("denied")
    for is_shown in (True, False):
        assert [str(line) for line in trace_lines(found, is_shown=is_shown)]
        json.dumps(value_of(found, is_shown=is_shown))

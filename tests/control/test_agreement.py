"""Admission, `smw validate` and the reconciler say the same of the same policy in the same world."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.cli.offline.judge import Registry as Folder
from supervisor_middleware.cli.offline.judge import drafts_of, judge, policies_of
from supervisor_middleware.compiler.drafts import draft_policy
from supervisor_middleware.compiler.questions import questions
from supervisor_middleware.control.acceptances import acceptance_of
from supervisor_middleware.control.admission import decide_review
from supervisor_middleware.control.decisions import decide, decide_registry
from supervisor_middleware.control.judge import Judge
from supervisor_middleware.control.reviews import Operation, Review
from supervisor_middleware.model.snapshot import POLICY_KINDS, Kind, Snapshot
from supervisor_middleware.model.verdict import Accepted, Outage, Rejected, Unreachable, Verdict
from supervisor_middleware.model.violation import Report
from supervisor_middleware.registry.catalog import Catalog
from tests.builders import (
    NAMESPACES,
    NOW,
    a_baseline,
    a_binding,
    a_manifest,
    a_policy,
    a_registration,
    a_sandbox,
    an_accepted_registration,
    some_settings,
)
from tests.compiler.strategies import json_values, nearly_policies, texts

SETTINGS = some_settings()
REGISTRATION = replace(
    a_registration(),
    status={
        "accepted": dict(
            an_accepted_registration(manifest=a_manifest(a_binding(), a_binding("acme/other"))).to_json()
        )
    },
)
ANSWERS: list[Verdict] = [Accepted(), Rejected("pii must be redact"), Unreachable(Outage.DEADLINE_EXCEEDED)]

fields: dict[str, st.SearchStrategy[Any]] = {
    "middleware": st.sampled_from(
        ["acme/redactor", "acme/other", "acme/redacter", "openshell/regex", "openshell/none"]
    ),
    "order": st.integers(0, 3),
    "config": st.dictionaries(texts, json_values, max_size=2),
    "onError": st.sampled_from(["FailOpen", "FailClosed", "Ignore"]),
    "endpoints": st.fixed_dictionaries(
        {"include": st.lists(st.sampled_from(["**", "*.example.com", "db.example.com", "a..b"]), max_size=3)},
        optional={"exclude": st.lists(st.sampled_from(["db.example.com", "**.example.com"]), max_size=3)},
    ),
}
entries = st.fixed_dictionaries(
    {"middleware": fields["middleware"], "endpoints": fields["endpoints"]},
    optional={k: fields[k] for k in ("order", "config", "onError")},
)
faulty_policies = st.fixed_dictionaries(
    {"networkMiddlewares": st.dictionaries(st.sampled_from(["a", "b", "c", "Bad", "k" * 64]), entries, max_size=5)},
    optional={
        "sandboxSelector": st.sampled_from([{}, {"matchLabels": {"app": "x"}}, 5]),
        "namespaceSelector": st.just({}),
        "activationDeadline": st.sampled_from(["5m", "25h"]),
        "networkPolicies": st.just({"db": {"endpoints": [{"host": "db.example.com", "tls": "skip"}]}}),
        "unknown": st.just(1),
    },
)


@pytest.mark.parametrize("kind", POLICY_KINDS)
@given(spec=faulty_policies | nearly_policies | json_values, data=st.data())
def test_all_callers_say_the_same(kind: Kind, spec: Any, data: st.DataObject) -> None:
    policy = a_policy(spec=spec) if kind is Kind.SANDBOX_POLICY else replace(a_baseline(), spec=spec)
    snapshot = Snapshot(
        registrations=(REGISTRATION,), policies=(policy,), sandboxes=(a_sandbox(),), namespaces=NAMESPACES
    )
    catalog = Catalog()
    registry = decide_registry(snapshot, catalog, settings=SETTINGS, acceptance=acceptance_of(snapshot))
    for question in questions(draft_policy(policy)[0], registry.bindings):
        catalog.decided(question.key, data.draw(st.sampled_from(ANSWERS)), now=NOW)

    told = _by_reconciler(snapshot, catalog)
    assert _by_cli(snapshot, catalog) == told
    review = Review(uid="1", operation=Operation.CREATE, stored=policy, old=None)
    others = replace(snapshot, policies=())
    answer = decide_review(
        review,
        others,
        acceptance=acceptance_of(others),
        registry=registry,
        verdicts=catalog.verdicts,
        settings=SETTINGS,
    )
    assert answer.is_allowed == told.is_valid
    assert answer.violations.violations == told.violations
    assert answer.is_retryable == told.is_retryable
    assert all(any(str(w).startswith(shown.rstrip("…")) for w in told.warnings) for shown in answer.warnings)
    assert len(answer.warnings) == len(told.warnings)


def _by_reconciler(snapshot: Snapshot, catalog: Catalog) -> Report:
    (decision,) = decide(snapshot, catalog, judge=Judge(settings=SETTINGS)).policies
    assert decision.compiled is not None
    return decision.compiled.report


def _by_cli(snapshot: Snapshot, catalog: Catalog) -> Report:
    registry = decide_registry(snapshot, catalog, settings=SETTINGS, acceptance=acceptance_of(snapshot))
    drafts, _ = drafts_of(snapshot, SETTINGS)
    pending = tuple(draft for draft in drafts if draft.name in registry.pending)
    folder = Folder(bindings=registry.bindings, pending=pending, report=Report())
    policies = policies_of(snapshot, _quietly)
    _, found = judge(policies, snapshot, folder, verdicts=catalog.verdicts, settings=SETTINGS, progress=_quietly)
    return found


def _quietly(done: int, total: int) -> None:
    """Nobody watches."""

"""What follows from a snapshot and a catalog: last-known-good per registration and per policy."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from supervisor_middleware.compiler.questions import verdict_digest
from supervisor_middleware.control.acceptances import acceptance_of, accepted_reference
from supervisor_middleware.control.conditions import ConditionReason, coarse
from supervisor_middleware.control.decisions import Decisions, decide
from supervisor_middleware.control.drift import Drift
from supervisor_middleware.control.judge import Judge
from supervisor_middleware.model.manifest import Manifest
from supervisor_middleware.model.registration import Registration
from supervisor_middleware.model.revision import Revision, Unresolved
from supervisor_middleware.model.snapshot import Snapshot, Stored, StoredRevision
from supervisor_middleware.model.verdict import (
    Accepted,
    Described,
    Description,
    Outage,
    Rejected,
    Undescribable,
    Unreachable,
    Verdict,
)
from supervisor_middleware.model.violation import Reason, Report
from supervisor_middleware.registry.catalog import Catalog
from tests.builders import (
    NOW,
    a_binding,
    a_manifest,
    a_policy,
    a_registration,
    a_revision,
    an_accepted_registration,
    an_entry_spec,
    some_settings,
)

SETTINGS = some_settings()
DOWN = Unreachable(Outage.CONNECTION_FAILED)
POLICY = "uid-of-team-a-redaction"


def an_accepted(stored: Stored | None = None, registration: Registration | None = None) -> Stored:
    """A registration whose status holds what was accepted."""
    value = registration or an_accepted_registration()
    return replace(stored or a_registration(), status={"accepted": dict(value.to_json())})


def naming(policy: Stored, revision: StoredRevision) -> Stored:
    return replace(policy, status={"accepted": {"revision": revision.number, "digest": revision.digest}})


def kept(revision: Revision, number: int = 1) -> StoredRevision:
    return StoredRevision(number=number, epoch=1, digest=revision.digest, revision=revision)


class World:
    """A snapshot and what services said; `decide` may be asked again after more was said."""

    def __init__(
        self,
        *,
        registrations: Iterable[Stored] = (),
        policies: Iterable[Stored] = (),
        revisions: Iterable[StoredRevision] = (),
        descriptions: Mapping[str, Description] | None = None,
        verdict: Verdict | None = None,
    ) -> None:
        self.snapshot = Snapshot(
            registrations=tuple(registrations), policies=tuple(policies), revisions=tuple(revisions)
        )
        self.catalog = Catalog()
        for registration in self.decide().registry.registrations:
            said = (descriptions or {}).get(registration.draft.name)
            if said is not None and registration.draft.connection is not None:
                self.catalog.described(
                    registration.draft.connection, registration.draft.name, description=said, now=NOW
                )
        if verdict is not None:
            self.answer(verdict)

    def answer(self, verdict: Verdict) -> None:
        for policy in self.decide().policies:
            for question in policy.questions:
                self.catalog.decided(question.key, verdict, now=NOW)

    def decide(self, *, frozen: frozenset[str] = frozenset()) -> Decisions:
        return decide(self.snapshot, self.catalog, judge=Judge(SETTINGS), frozen=frozen)


def described(*bindings: str, **fields: Any) -> dict[str, Description]:
    return {"acme": Described(a_manifest(*(a_binding(b, **fields) for b in bindings or ("acme/redactor",))))}


def reasons(found: Report | None) -> list[Reason]:
    assert found is not None
    return [v.reason for v in found.violations]


# -------------------------------------------------------------------------------------------------------- registrations


def test_a_registration_nobody_described_yet_is_pending() -> None:
    registry = World(registrations=[a_registration()]).decide().registry
    (found,) = registry.registrations
    assert (found.report, found.accepted, found.is_fresh, found.is_current) == (None, None, False, False)
    assert registry.pending == ("acme",)
    assert registry.is_incomplete


def test_a_described_registration_is_fresh_until_it_is_committed() -> None:
    world = World(registrations=[a_registration()], descriptions=described())
    (found,) = world.decide().registry.registrations
    assert found.accepted is not None
    assert (found.is_fresh, found.is_current, found.last_described) == (True, True, NOW)
    again = World(registrations=[an_accepted(registration=found.accepted)], descriptions=described())
    (found,) = again.decide().registry.registrations
    assert (found.is_fresh, found.is_current, reasons(found.report)) == (False, True, [])


def test_one_that_could_not_be_committed_stays_on_what_it_had() -> None:
    world = World(registrations=[a_registration()], descriptions=described())
    (found,) = world.decide(frozen=frozenset({"uid-of-acme"})).registry.registrations
    assert (found.accepted, found.is_fresh, found.is_current) == (None, False, False)


@pytest.mark.parametrize("said", [DOWN, Undescribable("it is no manifest"), None], ids=["down", "garbage", "unasked"])
def test_what_was_accepted_stays_whatever_the_service_does(said: Description | None) -> None:
    world = World(registrations=[an_accepted()], descriptions={} if said is None else {"acme": said})
    (found,) = world.decide().registry.registrations
    assert found.accepted == an_accepted_registration()
    assert not found.drift
    assert world.decide().registry.bindings.find("acme/redactor") is not None
    assert not world.decide().registry.is_incomplete


def test_a_broken_spec_is_final_and_keeps_what_was_accepted() -> None:
    world = World(registrations=[an_accepted(a_registration(grpcEndpoint="ftp://x"))], descriptions=described())
    (found,) = world.decide().registry.registrations
    assert found.accepted == an_accepted_registration()
    assert reasons(found.report) == [Reason.INVALID_ENDPOINT]
    assert (found.is_current, found.last_described) == (False, None)


def test_an_edit_counts_once_the_service_is_described_under_it() -> None:
    edited = an_accepted(a_registration(grpcEndpoint="https://elsewhere.svc"))
    (waiting,) = World(registrations=[edited]).decide().registry.registrations
    assert (waiting.accepted, waiting.report) == (an_accepted_registration(), None)
    (moved,) = World(registrations=[edited], descriptions=described()).decide().registry.registrations
    assert moved.accepted is not None
    assert moved.accepted.connection.endpoint == "https://elsewhere.svc:443"


def test_a_service_that_offers_nothing_of_what_it_was_accepted_with_has_drifted() -> None:
    world = World(registrations=[an_accepted()], descriptions=described("acme/other"))
    (found,) = world.decide().registry.registrations
    assert reasons(found.report) == [Reason.INVALID_MANIFEST]
    assert (found.accepted, found.drift.text, found.drift.lost) == (
        an_accepted_registration(),
        "the service no longer offers what was accepted: binding acme/redactor is gone",
        frozenset({"acme/redactor"}),
    )
    assert world.decide().registry.bindings.find("acme/other") is None


def test_a_service_that_lost_a_binding_nobody_uses_keeps_its_place_for_it() -> None:
    both = an_accepted_registration(manifest=a_manifest(a_binding(), a_binding("acme/other")))
    world = World(registrations=[an_accepted(registration=both)], descriptions=described("acme/redactor"))
    (found,) = world.decide().registry.registrations
    assert (reasons(found.report), found.is_current) == ([], True)
    assert found.accepted is not None
    assert found.accepted.claims == ("acme/redactor", "acme/other")
    assert found.drift.text == "the service does not offer acme/other, which stays reserved for this registration"
    assert world.decide().registry.bindings.find("acme/other") is None
    back = World(registrations=[an_accepted(registration=found.accepted)], descriptions=described(*both.claims))
    (found,) = back.decide().registry.registrations
    assert (found.accepted, found.drift) == (both, Drift())


def test_a_service_that_offers_more_gets_no_more() -> None:
    world = World(registrations=[an_accepted()], descriptions=described("acme/redactor", "other/stolen"))
    (found,) = world.decide().registry.registrations
    assert (reasons(found.report), found.is_fresh, found.accepted) == ([], False, an_accepted_registration())
    assert "also offers other/stolen" in found.drift.text
    assert world.decide().registry.bindings.find("other/stolen") is None


def test_a_new_endpoint_has_the_claims_of_the_old_one() -> None:
    moved = an_accepted(a_registration(grpcEndpoint="https://elsewhere.svc", generation=2))
    world = World(registrations=[moved], descriptions=described("acme/redactor", "acme/other"))
    (found,) = world.decide().registry.registrations
    assert found.accepted is not None
    assert found.accepted.connection.endpoint == "https://elsewhere.svc:443"
    assert (found.accepted.claims, [b.id for b in found.accepted.manifest.bindings]) == (
        ("acme/redactor",),
        ["acme/redactor"],
    )


def test_a_service_that_claims_what_is_built_in_loses_trust_and_takes_nothing_away() -> None:
    world = World(registrations=[an_accepted()], descriptions=described("acme/redactor", "openshell/regex"))
    (found,) = world.decide().registry.registrations
    assert (reasons(found.report), bool(found.drift)) == ([Reason.RESERVED_NAMESPACE], True)
    assert found.accepted == an_accepted_registration()


def test_listing_what_the_service_does_not_offer_is_no_drift() -> None:
    world = World(registrations=[an_accepted(a_registration(bindings=["acme/typo"]))], descriptions=described())
    (found,) = world.decide().registry.registrations
    assert (reasons(found.report), found.drift) == ([Reason.INVALID_MANIFEST], Drift())
    assert found.accepted == an_accepted_registration()


def test_a_binding_that_policies_use_cannot_be_struck_from_the_list() -> None:
    revision = kept(a_revision())
    both = an_accepted_registration(declared_bindings=["acme/redactor", "acme/other"])
    world = World(
        registrations=[an_accepted(a_registration(bindings=["acme/other"]), both)],
        policies=[naming(a_policy(), revision)],
        revisions=[revision],
        descriptions=described("acme/redactor", "acme/other"),
    )
    (found,) = world.decide().registry.registrations
    assert found.report is not None
    assert [(v.path, v.reason) for v in found.report.violations] == [("spec.bindings", Reason.INVALID_MANIFEST)]
    assert (found.accepted, found.drift) == (both, Drift())


def test_one_service_is_registered_in_two_parts() -> None:
    small = a_registration("small", bindings=["acme/small"], maxBodyBytes=1024)
    large = a_registration("large", bindings=["acme/large"], maxBodyBytes=65536)
    said = Described(a_manifest(a_binding("acme/small", max_body_bytes=1024), a_binding("acme/large")))
    world = World(registrations=[small, large], descriptions={"small": said, "large": said})
    found = world.decide().registry
    assert [(reasons(r.report), r.drift) for r in found.registrations] == [([], Drift()), ([], Drift())]
    limits = [found.bindings.by_id[i].max_body_bytes for i in ("acme/small", "acme/large")]
    assert limits == [1024, 65536]


def test_a_service_that_lost_a_binding_policies_use_has_drifted() -> None:
    revision = kept(a_revision())
    world = World(
        registrations=[an_accepted()],
        policies=[naming(a_policy(), revision)],
        revisions=[revision],
        descriptions=described("acme/other"),
    )
    (found,) = world.decide().registry.registrations
    assert (reasons(found.report), bool(found.drift)) == ([Reason.INVALID_MANIFEST], True)
    assert found.accepted == an_accepted_registration()
    assert world.decide().registry.bindings.find("acme/redactor") is not None


def test_a_limit_that_shrank_below_the_registrations_is_drift() -> None:
    world = World(registrations=[an_accepted()], descriptions=described(max_body_bytes=1024))
    (found,) = world.decide().registry.registrations
    assert (reasons(found.report), bool(found.drift)) == ([Reason.LIMIT_EXCEEDS_MANIFEST], True)


def test_a_limit_that_was_raised_above_the_services_is_no_drift() -> None:
    raised = an_accepted(a_registration(maxBodyBytes=2 * 65536), an_accepted_registration(manifest=of(65536)))
    (found,) = (
        World(registrations=[raised], descriptions=described(max_body_bytes=65536)).decide().registry.registrations
    )
    assert (reasons(found.report), bool(found.drift)) == ([Reason.LIMIT_EXCEEDS_MANIFEST], False)


def of(max_body_bytes: int) -> Manifest:
    return a_manifest(a_binding(max_body_bytes=max_body_bytes))


def test_of_two_that_claim_a_binding_the_older_stands() -> None:
    older = a_registration("older", created_at=NOW - timedelta(days=1))
    newer = a_registration("newer", grpcEndpoint="https://newer.svc")
    said = Described(a_manifest())
    world = World(registrations=[newer, older], descriptions={"older": said, "newer": said})
    found = {r.draft.name: r for r in world.decide().registry.registrations}
    assert found["older"].accepted is not None
    assert (found["newer"].accepted, reasons(found["newer"].report)) == (None, [Reason.DUPLICATE_BINDING])


def test_a_manifest_that_lists_a_binding_twice_conflicts_with_nobody() -> None:
    world = World(registrations=[a_registration()], descriptions=described("acme/redactor", "acme/redactor"))
    (found,) = world.decide().registry.registrations
    assert found.report is not None
    assert coarse(found.report) is ConditionReason.INVALID


def test_what_was_accepted_is_never_taken_by_an_older_newcomer() -> None:
    older = a_registration("older", created_at=NOW - timedelta(days=1), grpcEndpoint="https://older.svc")
    world = World(registrations=[an_accepted(), older], descriptions={"older": Described(a_manifest())})
    found = {r.draft.name: r for r in world.decide().registry.registrations}
    assert reasons(found["older"].report) == [Reason.DUPLICATE_BINDING]
    assert found["acme"].accepted is not None


@pytest.mark.parametrize("kept_value", ["text", {}, {"name": "acme"}, {"createdAt": "x"}, None])
def test_an_accepted_value_that_cannot_be_read_counts_for_nothing(kept_value: Any) -> None:
    stored = replace(a_registration(), status={"accepted": kept_value})
    (found,) = World(registrations=[stored]).decide().registry.registrations
    assert found.accepted is None


# ------------------------------------------------------------------------------------------------------------- policies


def test_a_policy_with_an_open_question_is_pending() -> None:
    world = World(registrations=[an_accepted()], policies=[a_policy()])
    (found,) = world.decide().policies
    assert (found.compiled, found.fresh, len(found.questions)) == (None, None, 1)
    assert found.fallback is not None
    assert found.fallback.entries[0].unresolved is Unresolved.NEVER_ACCEPTED


def test_an_answered_policy_is_fresh_until_it_is_committed() -> None:
    world = World(registrations=[an_accepted()], policies=[a_policy()], verdict=Accepted())
    (found,) = world.decide().policies
    assert found.fresh is not None
    revision = kept(found.fresh)
    again = World(
        registrations=[an_accepted()], policies=[naming(a_policy(), revision)], revisions=[revision], verdict=DOWN
    )
    (found,) = again.decide().policies
    assert (found.fresh, found.questions, found.accepted) == (None, (), revision)
    assert found.compiled is not None
    assert found.compiled.report.is_valid


def an_accepted_policy() -> StoredRevision:
    (found,) = World(registrations=[an_accepted()], policies=[a_policy()], verdict=Accepted()).decide().policies
    assert found.fresh is not None
    return kept(found.fresh)


@pytest.mark.parametrize(
    ("verdict", "reason"), [(DOWN, Reason.SERVICE_UNREACHABLE), (Rejected("no"), Reason.CONFIG_REJECTED)]
)
def test_an_edit_that_is_not_taken_keeps_last_known_good(verdict: Verdict, reason: Reason) -> None:
    revision = an_accepted_policy()
    edited = naming(a_policy(config={"new": 1}), revision)
    world = World(registrations=[an_accepted()], policies=[edited], revisions=[revision], verdict=verdict)
    (found,) = world.decide().policies
    assert (found.fresh, found.accepted) == (None, revision)
    assert found.compiled is not None
    assert reasons(found.compiled.report) == [reason]


def test_only_the_entry_that_changed_is_asked_about() -> None:
    revision = an_accepted_policy()
    entries = {"redact": an_entry_spec(), "new": an_entry_spec(order=1, config={"new": 1})}
    edited = naming(a_policy(entries=entries), revision)
    world = World(registrations=[an_accepted()], policies=[edited], revisions=[revision])
    (found,) = world.decide().policies
    (question,) = found.questions
    assert question.config == {"new": 1}
    assert verdict_digest(question.key) not in {e.verdict for e in revision.revision.entries}


def test_an_unknown_binding_waits_only_for_services_that_are_being_described() -> None:
    policy = a_policy(middleware="acme/other")
    (found,) = World(registrations=[a_registration()], policies=[policy]).decide().policies
    assert found.compiled is None
    answered = World(registrations=[a_registration()], policies=[policy], descriptions={"acme": DOWN})
    (found,) = answered.decide().policies
    assert found.compiled is not None
    assert reasons(found.compiled.report) == [Reason.UNKNOWN_BINDING]


def test_a_policy_that_cannot_even_be_read_has_no_fallback() -> None:
    (found,) = World(policies=[a_policy(spec={"sandboxSelector": 1})]).decide().policies
    assert found.fallback is None


def test_a_revision_counts_only_if_a_status_names_it() -> None:
    revision = kept(a_revision(), 2)
    named, other = naming(a_policy(), revision), naming(a_policy(), kept(a_revision(), 3))
    wrong = replace(named, status={"accepted": {"revision": 2, "digest": "sha256:other"}})
    assert acceptance_of(Snapshot(policies=(named,), revisions=(revision,))).by_policy == {POLICY: revision}
    for policy in (a_policy(), other, wrong):
        assert acceptance_of(Snapshot(policies=(policy,), revisions=(revision,))).by_policy == {}


@pytest.mark.parametrize("value", [None, 1, {}, {"revision": "1", "digest": "x"}, {"revision": 1, "digest": None}])
def test_an_odd_reference_is_none(value: Any) -> None:
    assert accepted_reference({"accepted": value}) is None

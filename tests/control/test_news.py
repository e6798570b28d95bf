"""What a new status has to tell, and what it has not."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from supervisor_middleware.audit.events import Changed, ChangeKind
from supervisor_middleware.control.news import News, news_of
from supervisor_middleware.model.violation import Reason, Report, Subject, Violation, report

POLICY = Subject(kind="SandboxPolicy", namespace="team-a", name="redaction")
SERVICE = Subject(kind="SupervisorMiddleware", namespace=None, name="acme")
FINE = Report()
BAD = report([Violation(subject=POLICY, path="spec.x", reason=Reason.MALFORMED, message="is wrong", detail="canary")])

Json = Mapping[str, Any]


def a_status(*held: str, generation: int = 1, digest: str = "sha256:1", messages: str = "") -> Json:
    """`held` are `Type=Status/Reason`."""
    return {
        "observedGeneration": generation,
        "accepted": {"digest": digest},
        "conditions": [
            {"type": h.partition("=")[0], "status": h.partition("=")[2].partition("/")[0], "reason": h.partition("/")[2], "message": messages}
            for h in held
        ],
    }  # fmt: skip


GOOD, REFUSED = "Accepted=True/Accepted", "Accepted=False/Invalid"


def told(status: Json, previous: Json, found: Report | None = FINE, *, subject: Subject = POLICY) -> list[News]:
    return list(news_of(subject, status, previous, found))


def changes(news: Iterable[News]) -> list[Changed]:
    return [n.change for n in news if n.change is not None]


def test_what_is_newly_accepted_is_told_with_its_digest() -> None:
    (news,) = told(a_status(GOOD), {})
    assert (news.reason, news.message, news.is_good) == ("Accepted", "accepted", True)
    assert news.change == Changed(
        kind=ChangeKind.POLICY_ACCEPTED,
        subject="SandboxPolicy team-a/redaction",
        reason="Accepted",
        digest="sha256:1",
    )


def test_what_is_refused_is_told_without_a_services_words_and_names_no_digest() -> None:
    (news,) = told(a_status(REFUSED), a_status(GOOD), BAD)
    assert (news.reason, news.message, news.is_good) == ("Invalid", "spec.x: is wrong", False)
    assert changes([news]) == [
        Changed(kind=ChangeKind.POLICY_REJECTED, subject="SandboxPolicy team-a/redaction", reason="Invalid")
    ]


@pytest.mark.parametrize(
    ("status", "previous", "found"),
    [
        (a_status(GOOD, messages="other words"), a_status(GOOD), Report()),
        (a_status(REFUSED), a_status(REFUSED), BAD),
        (a_status("Accepted=Unknown/Pending", generation=2), a_status(GOOD), None),
    ],
    ids=["still accepted", "still refused", "not judged yet"],
)
def test_what_is_no_news_is_not_told(status: Json, previous: Json, found: Report | None) -> None:
    assert told(status, previous, found) == []


@pytest.mark.parametrize(
    ("status", "found", "kind"),
    [
        (a_status(GOOD, generation=2, digest="sha256:2"), Report(), ChangeKind.POLICY_ACCEPTED),
        (a_status(GOOD, digest="sha256:2"), Report(), ChangeKind.POLICY_ACCEPTED),
    ],
    ids=["an edit", "a service that is another"],
)
def test_every_accepted_revision_is_audited_and_an_event_sent_for_the_first(
    status: Json, found: Report, kind: ChangeKind
) -> None:
    (news,) = told(status, a_status(GOOD), found)
    assert news.change is not None
    assert (news.change.kind, news.change.digest, news.reason) == (kind, "sha256:2", "")


def test_every_refused_edit_is_audited() -> None:
    (news,) = told(a_status(REFUSED, generation=2), a_status(REFUSED), BAD)
    assert news.change is not None
    assert (news.change.kind, news.reason) == (ChangeKind.POLICY_REJECTED, "")


def test_a_registrations_digest_is_its_manifests() -> None:
    status = {**a_status(GOOD), "manifest": {"digest": "sha256:manifest"}}
    (change,) = changes(told(status, {}, subject=SERVICE))
    assert (change.kind, change.digest) == (ChangeKind.REGISTRATION_ACCEPTED, "sha256:manifest")
    (change,) = changes(told(a_status(REFUSED, digest=""), {}, BAD, subject=SERVICE))
    assert (change.kind, change.digest) == (ChangeKind.REGISTRATION_REJECTED, "")


@pytest.mark.parametrize(
    ("held", "kind"),
    [
        ("InsecureTransport=True/Plaintext", ChangeKind.REGISTRATION_INSECURE),
        ("Drifted=True/Drifted", ChangeKind.REGISTRATION_DRIFTED),
        ("Degraded=True/Drifted", None),
    ],
)
def test_what_is_abnormal_is_told_when_it_comes_and_not_while_it_lasts(held: str, kind: ChangeKind | None) -> None:
    name = held.partition("=")[0]
    before, after = a_status(GOOD), a_status(GOOD, held, messages="says why")
    (news,) = told(after, before)
    assert (news.reason, news.is_good, bool(news.message)) == (name, False, True)
    assert [c.kind for c in changes([news])] == ([] if kind is None else [kind])
    assert told(a_status(GOOD, held, messages="in other words"), after) == []
    assert told(before, after) == []
    # Not judged anew, and told all the same.
    assert len(told(after, before, None)) == 1


def test_an_odd_status_is_survived() -> None:
    odd = {"accepted": "text", "manifest": None, "conditions": [{"type": "Accepted", "status": "True"}]}
    (change,) = changes(told(odd, {}))
    assert change.digest == ""

"""What is known of services, and when it is asked again."""

from datetime import datetime, timedelta

from supervisor_middleware.model.verdict import (
    Accepted,
    Described,
    Outage,
    Rejected,
    Undescribable,
    Unreachable,
    Verdict,
    VerdictKey,
)
from supervisor_middleware.registry.catalog import JITTER, MAX_SPARE_VERDICTS, Catalog
from tests.builders import NOW, a_connection, a_manifest

CONNECTION = a_connection()
DOWN = Unreachable(Outage.CONNECTION_FAILED)
NO = Rejected("no")


def a_key(config: str = "sha256:1") -> VerdictKey:
    return VerdictKey(endpoint="https://a", manifest_digest="sha256:m", binding="acme/redactor", config_digest=config)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def wait_after(failures: int) -> float:
    catalog = Catalog()
    for _ in range(failures):
        catalog.described(CONNECTION, "acme", description=DOWN, now=NOW)
    return dict(catalog.due())[CONNECTION, "acme"].timestamp() - NOW.timestamp()


def a_described(name: str = "acme", *, lost_after: float | None = None) -> Catalog:
    catalog = Catalog()
    catalog.described(CONNECTION, name, description=Described(a_manifest()), now=NOW)
    if lost_after is not None:
        catalog.lost(CONNECTION, now=after(lost_after))
    return catalog


def due_after(catalog: Catalog, name: str = "acme") -> float:
    return (dict(catalog.due())[CONNECTION, name] - NOW).total_seconds()


def test_a_service_is_described_at_once_and_then_every_minute() -> None:
    assert Catalog().is_due(CONNECTION, "acme", now=NOW)
    catalog = a_described()
    assert not catalog.is_due(CONNECTION, "acme", now=after(54))
    assert catalog.is_due(CONNECTION, "acme", now=after(60))
    assert catalog.is_due(CONNECTION, "of-another-name", now=NOW)


def test_one_that_is_down_is_asked_soon_and_then_more_slowly() -> None:
    waits = [wait_after(n) for n in (1, 2, 3, 4, 5, 50)]
    assert [round(wait / waits[0] * 2) for wait in waits] == [2, 4, 8, 16, 30, 30]
    assert 2 * (1 - JITTER) <= waits[0] <= 2


def test_services_keep_out_of_step_each_by_its_own_pace() -> None:
    waits = [due_after(a_described(f"service-{n}"), f"service-{n}") for n in range(200)]
    assert 60 * (1 - JITTER) <= min(waits) < 55
    assert 59 < max(waits) <= 60
    assert len({round(wait, 3) for wait in waits}) > 190
    # Not drawn: the same in every process.
    assert waits == [due_after(a_described(f"service-{n}"), f"service-{n}") for n in range(200)]


def test_a_lost_connection_is_a_reason_to_describe_soon() -> None:
    assert 20.9 <= due_after(a_described(lost_after=20)) <= 21
    assert due_after(a_described(lost_after=59.9)) == due_after(a_described())
    catalog = a_described(lost_after=20)
    catalog.lost(CONNECTION, now=after(20.9))
    assert due_after(catalog) <= 21
    catalog.lost(a_connection("https://elsewhere.svc"), now=after(0))
    catalog.described(CONNECTION, "acme", description=Described(a_manifest()), now=NOW)
    assert due_after(catalog) == due_after(a_described())


def test_a_service_that_ends_every_connection_costs_a_question_every_five_seconds() -> None:
    assert 4.5 <= due_after(a_described(lost_after=0.1)) <= 5


def test_a_lost_connection_ends_no_backing_off() -> None:
    catalog = Catalog()
    for _ in range(10):
        catalog.described(CONNECTION, "acme", description=DOWN, now=NOW)
    catalog.lost(CONNECTION, now=after(1))
    assert due_after(catalog) >= 27


def test_garbage_backs_off_like_an_outage_and_an_answer_ends_it() -> None:
    catalog = Catalog()
    catalog.described(CONNECTION, "acme", description=Undescribable("no manifest"), now=NOW)
    catalog.described(CONNECTION, "acme", description=Described(a_manifest()), now=NOW)
    catalog.described(CONNECTION, "acme", description=DOWN, now=NOW)
    assert catalog.is_due(CONNECTION, "acme", now=after(2))


def answered(*verdicts: Verdict) -> Catalog:
    catalog = Catalog()
    for verdict in verdicts:
        catalog.decided(a_key(), verdict, now=NOW)
    return catalog


def test_a_yes_stands() -> None:
    assert not answered(Accepted()).is_askable(a_key(), now=after(10**6))
    assert not list(answered(Accepted()).verdicts_due())


def test_a_no_is_asked_again_at_leisure_and_an_outage_soon() -> None:
    for verdict, wait in ((NO, 60), (DOWN, 5)):
        catalog = answered(verdict)
        assert not catalog.is_askable(a_key(), now=after(wait - 1))
        assert catalog.is_askable(a_key(), now=after(wait))
        assert list(catalog.verdicts_due()) == [(a_key(), after(wait))]


def test_an_outage_takes_no_answer_away() -> None:
    assert answered(NO, DOWN).verdicts[a_key()] == NO
    assert answered(DOWN, NO).verdicts[a_key()] == NO
    slow = Unreachable(Outage.DEADLINE_EXCEEDED)
    assert answered(DOWN, slow).verdicts[a_key()] == slow


def test_what_was_never_asked_is_unasked() -> None:
    assert Catalog().is_unasked(a_key())
    assert Catalog().is_askable(a_key(), now=NOW)
    assert not answered(DOWN).is_unasked(a_key())


def test_what_nothing_refers_to_is_forgotten() -> None:
    catalog = answered(Accepted())
    catalog.described(CONNECTION, "acme", description=DOWN, now=NOW)
    catalog.keep(frozenset({(CONNECTION, "acme")}), frozenset({a_key()}))
    assert catalog.description(CONNECTION, "acme") is not None
    assert not catalog.is_unasked(a_key())
    catalog.keep(frozenset(), frozenset())
    assert catalog.description(CONNECTION, "acme") is None
    assert catalog.is_unasked(a_key())


def test_forgetting_a_no_is_news_and_forgetting_a_yes_is_none() -> None:
    for verdict, news in ((Accepted(), 0), (Rejected("no"), 1), (DOWN, 1)):
        catalog = answered(verdict)
        before = catalog.version
        catalog.keep(frozenset(), frozenset({a_key()}))
        assert catalog.version == before
        catalog.keep(frozenset(), frozenset())
        assert catalog.version == before + news


def test_reviews_of_what_is_never_stored_fill_no_memory_and_push_out_nothing_wanted() -> None:
    catalog = Catalog()
    catalog.keep(frozenset(), frozenset({a_key("wanted")}))
    catalog.decided(a_key("wanted"), Accepted(), now=NOW)
    for number in range(MAX_SPARE_VERDICTS + 10):
        catalog.decided(a_key(f"spare-{number}"), Accepted(), now=NOW)
    assert len(catalog.verdicts) == MAX_SPARE_VERDICTS + 1
    assert not catalog.is_unasked(a_key("wanted"))
    assert catalog.is_unasked(a_key("spare-9"))
    assert not catalog.is_unasked(a_key("spare-10"))

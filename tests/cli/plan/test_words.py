"""What a difference is called: each thing that can change has its line."""

from datetime import timedelta

from supervisor_middleware.cli.plan.words import Mark, Row, rows_of, value_of
from supervisor_middleware.compiler.differences import Difference, HostChange, difference
from supervisor_middleware.compiler.inspection import WorstCase
from supervisor_middleware.compiler.skipped import UNDECIDED
from supervisor_middleware.model.generation import Generation
from supervisor_middleware.model.revision import Unresolved
from tests.builders import a_generation, a_service, a_stage


def compared(before: Generation, after: Generation) -> Difference:
    found = difference(before, after)
    assert found is not None
    return found


def test_a_service_that_receives_content_no_longer_is_told() -> None:
    rows = list(rows_of(compared(a_generation(), Generation())))
    assert (
        Row(
            mark=Mark.REMOVED,
            kind="service",
            name="acme",
            text="receives content no longer, https://redactor.acme.svc:8443",
        )
        in rows
    )


def test_how_long_a_service_is_waited_for_is_told() -> None:
    services = (a_service(), a_service(activation_deadline=timedelta(seconds=90)))
    found = compared(*(Generation(services=(service,)) for service in services))
    assert list(rows_of(found)) == [
        Row(mark=Mark.CHANGED, kind="service", name="acme", text="activationDeadline  none -> 90s")
    ]


def test_a_host_that_nobody_could_find_is_called_perhaps() -> None:
    unknown = WorstCase(time=timedelta(seconds=1), host=UNDECIDED)
    lost = HostChange(host=UNDECIDED, binding="acme/redactor")
    found = Difference(
        lost=(lost,), gained=(HostChange(host=UNDECIDED),), latency_before=WorstCase(), latency_after=unknown
    )
    assert [(r.name, r.text) for r in rows_of(found)] == [
        ("a host", "no longer inspected by acme/redactor, perhaps: not decided, use fewer wildcards"),
        ("a host", "now inspected by any stage, perhaps: not decided, use fewer wildcards"),
        ("", "at most 0s -> 1s"),
    ]
    value = value_of(found)
    assert value["hostsLost"] == [{"example": None, "decided": False, "binding": "acme/redactor"}]
    assert value["worstCaseLatency"] == {
        "before": {"time": "0s", "example": None, "decided": True},
        "after": {"time": "1s", "example": None, "decided": False},
    }


def test_a_stage_that_cannot_run_says_why() -> None:
    stage = a_stage(include=["a.com"], exclude=["b.com"], unresolved=Unresolved.CONFLICTED)
    (row, *_) = rows_of(compared(Generation(), Generation(stages=(stage,), services=(a_service(),))))
    assert row.text == "acme/redactor, FailClosed, 500ms, for a.com but b.com, cannot run: Conflicted"

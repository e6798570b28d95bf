"""What is said of peers in our own log, and what is counted only."""

from supervisor_middleware.distribution.complaints import PACE, Complaints


def test_so_much_is_said_and_then_how_much_was_left_out() -> None:
    now, said = [5.0], list[dict[str, object]]()

    def log(event: str, **fields: object) -> None:
        said.append({"event": event, **fields})

    complaints = Complaints(clock=lambda: now[0])
    for number in range(PACE.burst + 7):
        complaints.tell(log, "refused", reason=number)
    assert said == [{"event": "refused", "reason": number} for number in range(PACE.burst)]
    now[0] += 1
    complaints.tell(log, "refused", reason="again")
    now[0] += 1
    complaints.tell(log, "refused", reason="later")
    assert said[PACE.burst :] == [
        {"event": "refused", "reason": "again", "left_out": 7},
        {"event": "refused", "reason": "later"},
    ]

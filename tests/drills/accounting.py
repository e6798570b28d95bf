"""Whether every request was judged whole, under exactly one published generation, or refused. PURE.

Each generation of a drill marks its requests: both its stages carry the generation's number as their config, show it to
the service, and write it into a header. Four witnesses are compared: what the client was answered, what the service was
shown, what reached the upstream, and the supervisor's audit file. A request is known by its number, which is its path;
the service also knows the identifier that the audit file has.

The rules:
1.  What reaches the upstream was marked by both stages, and by one generation, which was published.
2.  The service was shown it by both stages before that, under that one generation.
3.  The audit file has both decisions: it is written before a request goes on.
4.  One request is evaluated once, and no part of it under another generation.
5.  What is forbidden is refused; what is refused never reaches the upstream.
6.  A `FailClosed` stage is never bypassed.
7.  While a supervisor runs, a request that began after another ended is not judged under an older generation.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

STAGES: Final = ("first", "second")
UNANSWERED: Final = 0
HTTP_ACTIVITY: Final = 4002
DETECTION_FINDING: Final = 2004

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What became of a request, as its client saw it. `process` counts the supervisor's lives."""

    number: int
    is_forbidden: bool
    began: float
    ended: float
    status: int
    error: str = ""
    marks: tuple[str, ...] = ()
    process: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a service was asked."""

    number: int
    request_id: str
    stage: str
    mark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """What reached the upstream."""

    number: int
    marks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The sums, and every breach of a rule."""

    problems: tuple[str, ...]
    allowed: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    unanswered: int = 0

    @property
    def failed(self) -> int:
        """Refused for any other reason than that they were forbidden."""
        return sum(count for error, count in self.refused.items() if error != "middleware_denied")


@dataclass(frozen=True, slots=True, kw_only=True)
class Witnesses:
    """All that was seen. `published` are the marks of generations that were handed to the control plane."""

    sent: Sequence[Sent]
    shown: Sequence[Shown]
    arrived: Sequence[Arrived]
    audited: Sequence[Record]
    published: frozenset[str]


def account(seen: Witnesses) -> Tally:
    """Hold everything against the rules."""
    answered = [s for s in seen.sent if s.status != UNANSWERED]
    return Tally(
        problems=tuple(_problems(seen)),
        allowed=Counter(s.marks[0] for s in answered if s.status == 200 and s.marks),
        refused=Counter(s.error or str(s.status) for s in answered if s.status != 200),
        unanswered=len(seen.sent) - len(answered),
    )


def _problems(seen: Witnesses) -> Iterator[str]:
    yield from _of_arrivals(seen)
    yield from _of_answers(seen)
    yield from _of_evaluations(seen.shown)
    yield from bypasses(seen.audited)
    yield from _of_order(seen.sent)


def _of_arrivals(seen: Witnesses) -> Iterator[str]:
    shown, audited = _by_number(seen.shown), _decisions(seen.audited)
    for arrived in seen.arrived:
        name = f"request {arrived.number} reached the upstream"
        if len(arrived.marks) != len(STAGES) or len(set(arrived.marks)) != 1:
            yield f"{name} marked {arrived.marks}"
        elif arrived.marks[0] not in seen.published:
            yield f"{name} under {arrived.marks[0]}, which nobody published"
        asked = shown.get(arrived.number, [])
        if sorted((s.stage, s.mark) for s in asked) != sorted(zip(STAGES, arrived.marks, strict=False)):
            yield f"{name} marked {arrived.marks}, but the service was shown {asked}"
        for known in {s.request_id for s in asked}:
            if audited.get(known) != Counter((stage, "Allowed") for stage in STAGES):
                yield f"{name}, but the audit file has {dict(audited.get(known, {}))}"
    for number, count in Counter(a.number for a in seen.arrived).items():
        if count > 1:
            yield f"request {number} reached the upstream {count} times"


def _of_answers(seen: Witnesses) -> Iterator[str]:
    arrived = {a.number: a for a in seen.arrived}
    for sent in seen.sent:
        reached = arrived.get(sent.number)
        if sent.is_forbidden and reached is not None:
            yield f"request {sent.number} is forbidden and reached the upstream"
        if sent.status == 200 and (reached is None or reached.marks != sent.marks):
            yield f"request {sent.number} was answered {sent.marks}, but the upstream saw {reached}"
        if sent.status not in {200, UNANSWERED} and reached is not None:
            yield f"request {sent.number} was refused ({sent.error}) and reached the upstream"


def _of_evaluations(shown: Sequence[Shown]) -> Iterator[str]:
    for number, asked in _by_number(shown).items():
        if len({s.mark for s in asked}) != 1:
            yield f"request {number} was evaluated under a mixed generation: {asked}"
        if len({s.stage for s in asked}) != len(asked):
            yield f"request {number} was evaluated twice: {asked}"


def bypasses(audited: Iterable[Record]) -> Iterator[str]:
    """A stage of ours that failed and did not stop its request. All of them are `FailClosed`."""
    for record in audited:
        is_failure = record["class_uid"] == DETECTION_FINDING and record.get("is_alert")
        is_failure = is_failure or record.get("unmapped", {}).get("failed")
        if is_failure and record.get("disposition") != "Blocked":
            yield f"a FailClosed stage was bypassed: {record['message']}"


def _of_order(sent: Sequence[Sent]) -> Iterator[str]:
    for process in {s.process for s in sent}:
        allowed = [s for s in sent if s.process == process and s.status == 200 and s.marks]
        ended = sorted(allowed, key=lambda s: s.ended)
        newest, done = 0, 0
        for one in sorted(allowed, key=lambda s: s.began):
            while ended[done].ended < one.began:
                newest = max(newest, int(ended[done].marks[0]))
                done += 1
            if int(one.marks[0]) < newest:
                yield f"request {one.number} was judged under {one.marks[0]} after {newest} was served"


def _by_number(shown: Sequence[Shown]) -> Mapping[int, list[Shown]]:
    found = defaultdict[int, list[Shown]](list)
    for one in shown:
        found[one.number].append(one)
    return found


def _decisions(audited: Sequence[Record]) -> Mapping[str, Counter[tuple[str, str]]]:
    found = defaultdict[str, Counter[tuple[str, str]]](Counter)
    for record in audited:
        if record["class_uid"] == HTTP_ACTIVITY:
            unmapped = record["unmapped"]
            found[unmapped["request_id"]][unmapped["middleware"], record["disposition"]] += 1
    return found

"""Chains people can read: `tests/golden/chain/<case>.in.yaml` is played, the `.out.yaml` beside it is what comes out.

`pytest tests/supervisor/test_chain_golden.py --rewrite-golden` writes the outputs anew; the diff is the review.
"""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor_middleware.model.durations import format_duration, parse_timeout
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
from supervisor_middleware.model.generation import Stage
from supervisor_middleware.model.revision import Unresolved
from supervisor_middleware.supervisor.chain import Answer, Ask
from supervisor_middleware.supervisor.exchange import Allowed, Body, Outcome, Overflowed, Unread, Whole
from supervisor_middleware.supervisor.headers import apply
from tests.supervisor.builders import Played, request, stage

CASES = sorted(Path(__file__).parents[1].joinpath("golden", "chain").glob("*.in.yaml"))


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.name.removesuffix(".in.yaml"))
def test_chain_gives_the_recorded_outcome(path: Path, pytestconfig: pytest.Config) -> None:
    case = yaml.safe_load(path.read_text())
    expected = path.with_name(path.name.replace(".in.yaml", ".out.yaml"))
    text = yaml.safe_dump(_play(case), sort_keys=False, allow_unicode=True, width=110)
    if pytestconfig.getoption("--rewrite-golden"):
        expected.write_text(text)
    assert expected.read_text() == text


def test_there_are_cases() -> None:
    assert CASES


def _play(case: Mapping[str, Any]) -> dict[str, Any]:
    headers = _headers(case["request"].get("headers", []))
    played = Played(
        tuple(_stage(s) for s in case["stages"]),
        request(_body(case["request"].get("body", "")), headers=headers),
        {s["key"]: _answer(s["answers"]) for s in case["stages"] if "answers" in s},
        latency=parse_timeout(case.get("latency", "10ms")),
    )
    return {"asked": [_asked(a) for a in played.asks], **_outcome(played.outcome, headers)}


def _stage(value: Mapping[str, Any]) -> Stage:
    return stage(
        value["key"],
        service=value.get("service", "acme"),
        on_error=OnError(value.get("onError", "FailClosed")),
        timeout=parse_timeout(value.get("timeout", "500ms")),
        max_body_bytes=value.get("maxBodyBytes", 1024),
        unresolved=Unresolved(value["unresolved"]) if "unresolved" in value else None,
    )


def _body(value: str | Mapping[str, int]) -> Body:
    match value:
        case str():
            return Whole(value.encode())
        case {"declared": declared}:
            return Unread(declared)
        case _:
            return Overflowed()


def _headers(values: list[Mapping[str, str]]) -> tuple[Header, ...]:
    return tuple(Header(name, value) for line in values for name, value in line.items())


def _answer(value: str | Mapping[str, Any]) -> Answer:
    if isinstance(value, str):
        return FailureCode(value)
    return Result(
        decision=Decision(value["decision"]),
        reason=value.get("reason", ""),
        reason_code=value.get("reasonCode", ""),
        body=value["body"].encode() if "body" in value else None,
        mutations=tuple(_mutation(m) for m in value.get("headers", [])),
        findings=tuple(Finding(**f) for f in value.get("findings", [])),
        metadata=value.get("metadata", {}),
    )


def _mutation(value: Mapping[str, str]) -> HeaderMutation:
    match value:
        case {"remove": name}:
            return RemoveHeader(name=name)
        case _:
            return WriteHeader(
                name=value["write"], value=value["value"], on_existing=ExistingHeader(value["onExisting"])
            )


def _asked(ask: Ask) -> dict[str, Any]:
    return {
        "key": ask.stage.key,
        "deadline": format_duration(ask.deadline),
        "headers": [f"{h.name}: {h.value}" for h in ask.evaluation.headers],
        "body": ask.evaluation.body.decode(),
    }


def _outcome(outcome: Outcome, headers: tuple[Header, ...]) -> dict[str, Any]:
    events = [_event(e) for e in outcome.events]
    if isinstance(outcome, Allowed):
        upstream: dict[str, Any] = {
            "headers": [f"{h.name}: {h.value}" for h in apply(outcome.mutations, headers)],
            "body": "as it came" if outcome.body is None else outcome.body.decode(),
        }
        return {"allowed": upstream, "metadata": outcome.metadata, "events": events}
    denied = {
        "cause": outcome.cause.value,
        "key": outcome.key,
        "code": None if outcome.code is None else outcome.code.value,
        "reasonCode": outcome.reason_code,
    }
    return {"denied": denied, "metadata": outcome.metadata, "events": events}


def _event(event: Any) -> dict[str, Any]:
    fields = asdict(event)
    key = fields.pop("stage")["key"]
    return {"is": type(event).__name__, "key": key} | {name: _plain(value) for name, value in fields.items()}


def _plain(value: object) -> object:
    match value:
        case timedelta():
            return format_duration(value)
        case Enum():
            return value.value
        case _:
            return value

"""`smw ca`: where a rotation stands, asking for one, and what the exit code says."""

import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor_middleware.cli.ca import command
from supervisor_middleware.cli.ca.words import is_overdue, line, shown
from supervisor_middleware.pki.rotation import Awaited, Cause, Rotation, Wait
from supervisor_middleware.pki.rotation_requests import Stage, parse_request
from supervisor_middleware.pki.rotation_status import MAX_NAMES, status_of
from supervisor_middleware.pki.succession import Succession
from tests.cli.commands import MODULE, Smw
from tests.pki.builders import an_authority
from tests.pki.foreign import a_foreign_root

NOW = datetime.now(UTC).replace(microsecond=0)
FIRST = an_authority(now=NOW)
STEADY = Rotation(roots=Succession(current=FIRST), since=NOW)
PREPARED = replace(STEADY, roots=STEADY.roots.with_successor(now=NOW)).at(
    Stage.PREPARED, now=NOW, cause=Cause.REQUESTED
)
WAITS = (
    Wait(awaited=Awaited.SERVICES_REFUSING, count=2, names=("redactor", "terms")),
    Wait(awaited=Awaited.SUPERVISORS_ABSENT, count=3, until=PREPARED.deadline),
)


class Place:
    """A state directory with a control plane that answers requests with a prepared status."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.heard: list[str] = []
        self.answer: Rotation | None = PREPARED
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def say(self, status: Any) -> None:
        staged = self.directory / "staged"
        staged.write_text(json.dumps(status))
        staged.replace(self.directory / "rotation-status.json")

    def _listen(self) -> None:
        path = self.directory / "rotation-request"
        while not self._is_over.wait(0.02):
            if path.exists() and (text := path.read_text()) not in self.heard:
                self.heard.append(text)
                if self.answer is not None:
                    self.say(status_of(replace(self.answer, handled=text), ()))

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    made.say(status_of(STEADY, ()))
    yield made
    made.close()


def text_of(rotation: Rotation, *waits: Wait, problem: str = "", now: datetime = NOW) -> str:
    found = shown(status_of(rotation, waits, problem=problem), now=now)
    return found.plain


# ------------------------------------------------------------------------------------------------------------- the words


def test_people_see_stage_roots_and_what_is_waited_for() -> None:
    text = text_of(PREPARED, *WAITS)
    stage, root = text.splitlines()[1], text.splitlines()[4]
    assert stage.split()[0] == "prepared"
    assert stage.split()[3] == "activated"
    assert "issuing  own" in root
    assert "  services that refuse certificates of that root: redactor, terms\n" in text
    assert "supervisors that are not connected: 3 (until " in text
    assert "overdue" not in text


def test_a_steady_root_has_nothing_to_come() -> None:
    text = text_of(STEADY)
    assert text.splitlines()[1].split()[-2:] == ["-", "-"]
    assert "waiting" not in text


def test_what_is_overdue_or_cannot_be_used_is_said() -> None:
    late = NOW + timedelta(days=3)
    assert "overdue: see what it waits for" in text_of(PREPARED, now=late)
    assert is_overdue(status_of(PREPARED, ()), now=late)
    assert not is_overdue(status_of(STEADY, ()), now=late)
    assert "is not used: it expired" in text_of(STEADY, problem="it expired")


def test_many_services_are_named_in_part() -> None:
    names = tuple(f"s{n:02}" for n in range(MAX_NAMES + 5))
    wait = Wait(awaited=Awaited.SERVICES_SILENT, count=len(names), names=names)
    assert f"s{MAX_NAMES - 1:02} and 5 more" in text_of(PREPARED, wait)


def test_a_newer_operator_may_wait_for_what_this_release_does_not_know() -> None:
    status = {**status_of(PREPARED, ()), "waitsFor": [{"reason": "moon", "count": 1, "names": [], "until": None}]}
    assert "moon:  1" in shown(status, now=NOW).plain


def test_one_line_says_it_all() -> None:
    said = line(status_of(PREPARED, WAITS, problem="broken"))
    assert "prepared (requested)  waiting for services that refuse" in said
    assert said.endswith("broken")
    assert "\n" not in said


def test_a_status_holds_no_key() -> None:
    assert "PRIVATE" not in json.dumps(status_of(PREPARED, WAITS))


# ------------------------------------------------------------------------------------------------------------ the commands


def test_status_is_shown_in_each_form(smw: Smw, place: Place) -> None:
    table = smw("ca", "status", "--state", place.directory)
    assert (table.code, table.out.split()[0]) == (0, "STAGE")
    as_json = smw("ca", "status", "--state", place.directory, "-o", "json")
    as_yaml = smw("ca", "status", "--state", place.directory, "-o", "yaml")
    assert json.loads(as_json.out) == yaml.safe_load(as_yaml.out) == status_of(STEADY, ())


@pytest.mark.parametrize(
    "status",
    [
        status_of(STEADY, (), problem="expired"),
        status_of(PREPARED.at(Stage.PREPARED, now=NOW - timedelta(days=3), cause=Cause.REQUESTED), ()),
    ],
)
def test_what_needs_somebody_is_exit_code_1(smw: Smw, place: Place, status: Any) -> None:
    place.say(status)
    assert smw("ca", "status", "--state", place.directory).code == 1


def test_nobody_to_ask_is_exit_code_2(smw: Smw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert smw("ca", "status", "--state", tmp_path / "none").code == 2
    assert smw("ca", "rotate", "--state", tmp_path, "--kubeconfig", tmp_path).code == 2
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    outcome = smw("ca", "status")
    assert outcome.code == 2
    assert "--kubeconfig FILE of a cluster" in outcome.err


def test_a_rotation_is_asked_for_and_heard(smw: Smw, place: Place) -> None:
    outcome = smw("ca", "rotate", "--state", place.directory)
    assert (outcome.code, outcome.err) == (0, "")
    assert "prepared" in outcome.out
    (heard,) = place.heard
    request = parse_request(heard)
    assert request is not None
    assert request.force is None


def test_one_that_is_under_way_is_not_asked_for_again(smw: Smw, place: Place) -> None:
    place.say(status_of(PREPARED, WAITS))
    outcome = smw("ca", "rotate", "--state", place.directory)
    assert outcome.code == 1
    assert "a rotation is under way: prepared since" in outcome.err
    assert place.heard == []


def test_force_names_the_stage_and_says_what_it_overrides(smw: Smw, place: Place) -> None:
    place.say(status_of(PREPARED, WAITS))
    place.answer = PREPARED.at(Stage.ACTIVATED, now=NOW, cause=Cause.FORCED)
    outcome = smw("ca", "rotate", "--force", "--state", place.directory)
    assert outcome.code == 0
    assert outcome.out.startswith("ending prepared by force\n  it no longer waits for services that refuse")
    (heard,) = place.heard
    request = parse_request(heard)
    assert request is not None
    assert request.force is Stage.PREPARED


def test_force_where_nothing_is_under_way_begins_like_any_request(smw: Smw, place: Place) -> None:
    outcome = smw("ca", "rotate", "--force", "--state", place.directory)
    assert outcome.code == 0
    assert "ending" not in outcome.out


def test_a_request_that_did_nothing_is_exit_code_1(smw: Smw, place: Place) -> None:
    place.answer = STEADY
    outcome = smw("ca", "rotate", "--state", place.directory)
    assert outcome.code == 1
    assert "did nothing" in outcome.err


def test_a_supplied_root_is_renewed_where_it_comes_from(smw: Smw, place: Place) -> None:
    place.say(status_of(Rotation(roots=Succession(current=a_foreign_root(now=NOW)), since=NOW), ()))
    outcome = smw("ca", "rotate", "--state", place.directory)
    assert outcome.code == 1
    assert "supplied from outside: renew it there" in outcome.err


def test_a_request_that_nobody_hears_is_exit_code_2(smw: Smw, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.answer = None
    monkeypatch.setattr(command, "HEARING", timedelta(seconds=0.2))
    outcome = smw("ca", "rotate", "--state", place.directory)
    assert outcome.code == 2
    assert "nobody heard the request" in outcome.err


@pytest.mark.parametrize(
    ("form", "word"), [("table", "steady (made)"), ("json", '"steady"'), ("yaml", "stage: steady")]
)
def test_watch_shows_each_change_until_it_is_interrupted(place: Place, form: str, word: str) -> None:
    arguments = ("ca", "status", "--watch", "-o", form, "--state", str(place.directory))
    watching = subprocess.Popen((*MODULE, *arguments), stdout=subprocess.PIPE, text=True)
    try:
        assert watching.stdout is not None
        assert word in _read_until(watching.stdout, word)
        place.say(status_of(PREPARED, ()))
        assert "prepared" in _read_until(watching.stdout, "prepared")
    finally:
        watching.terminate()
        watching.communicate()


def _read_until(stream: Any, word: str) -> str:
    text = ""
    while word not in text:
        text += stream.readline()
    return text

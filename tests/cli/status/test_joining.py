"""Who cannot come back without a person, why, and by which commands: standalone."""

from datetime import timedelta
from pathlib import Path

from supervisor_middleware.cli.status.joining import MAX_NAMED, Known, known_of, needs_of, told
from supervisor_middleware.pki.profiles import key_identifier
from supervisor_middleware.pki.store import join_tokens
from supervisor_middleware.wire.gen import inspection_pb2 as pb
from tests.cli.status.answers import NOW, a_supervisor, an_answer
from tests.pki.builders import an_authority

STATE = Path("state")
GOOD = {"joined": frozenset({"team-a/agent"}), "roots": frozenset({"root"})}
COMMANDS = [
    "  here:               smw token create team-a/agent --state state",
    "  at the supervisor:  what that printed into its token file; it goes on by itself, without a restart",
]


def away(name: str = "agent", *, issuer: str = "root", life: timedelta = timedelta(hours=1)) -> pb.Supervisor:
    row = pb.Supervisor(namespace="team-a", sandbox=name, state=pb.SUPERVISOR_STATE_NOT_CONNECTED)
    if issuer:
        row.certificate_issuer = issuer
        row.certificate_expires_at.FromDatetime(NOW + life)
    return row


def lines(*rows: pb.Supervisor, **known: frozenset[str]) -> list[str]:
    return list(told(an_answer(*rows), Known(**{**GOOD, **known}), state=STATE, now=NOW))


def test_one_whose_certificate_is_good_or_may_be_comes_back_by_itself() -> None:
    assert lines(away(), a_supervisor()) == lines(away(issuer="")) == []
    # One that is connected needs nothing, whatever its certificate says.
    assert lines(a_supervisor(), joined=frozenset()) == []


def test_one_whose_certificate_ended_while_it_was_away_needs_a_token() -> None:
    ended = away(life=-timedelta(minutes=1))
    at = f"{NOW - timedelta(minutes=1):%Y-%m-%dT%H:%M:%SZ}"
    assert lines(ended) == [f"team-a/agent needs a new join token: its certificate ended at {at}", *COMMANDS]


def test_one_whose_root_was_given_up_needs_the_bundle_as_well() -> None:
    assert lines(away(issuer="other")) == [
        "team-a/agent needs a new join token: the root of its certificate was given up",
        *COMMANDS,
        "where --trust-bundle is a copy of state/ca.crt, it must be copied there first",
    ]


def test_one_that_never_joined_needs_a_token_unless_one_was_made_for_it() -> None:
    why = "it has not joined, or its join was revoked"
    assert lines(away(issuer=""), joined=frozenset()) == [f"team-a/agent needs a new join token: {why}", *COMMANDS]
    invited = lines(away(issuer=""), joined=frozenset(), invited=frozenset({"team-a/agent"}))
    assert invited == [f"team-a/agent can join by the token that was made for it ({why})", COMMANDS[1]]


def test_of_many_some_are_named() -> None:
    found = lines(*(away(f"agent-{number}") for number in range(MAX_NAMED + 2)), joined=frozenset())
    assert found[-1] == "and 2 more need a join token"
    assert sum("needs a new" in line for line in found) == MAX_NAMED


def test_what_is_known_is_read_from_the_state_directory_and_nothing_is_told_without_it(tmp_path: Path) -> None:
    authority = an_authority()
    answer = an_answer(away(), away("other"), away("third"))
    assert needs_of(answer, tmp_path, now=NOW) == ()
    (tmp_path / "ca.crt").write_bytes(authority.certificate_pem)
    with join_tokens(tmp_path) as tokens:
        hour = timedelta(hours=1)
        tokens.redeem(tokens.issue("team-a", "agent", now=NOW, lifetime=hour, secret=b"a" * 32), NOW)
        tokens.issue("team-a", "other", now=NOW, lifetime=hour, secret=b"b" * 32)
        tokens.issue("team-a", "third", now=NOW - 2 * hour, lifetime=hour, secret=b"c" * 32)
    roots = frozenset({key_identifier(authority.certificate)})
    assert known_of(tmp_path, answer, now=NOW) == Known(
        joined=frozenset({"team-a/agent"}), invited=frozenset({"team-a/other"}), roots=roots
    )
    assert "team-a/other can join" in " ".join(needs_of(answer, tmp_path, now=NOW))

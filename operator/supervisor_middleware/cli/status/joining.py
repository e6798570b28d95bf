"""Which supervisors of a standalone control plane cannot come back without a person, and what that person does.

Nothing else than a join token proves who a standalone supervisor is: one whose certificate counts no more needs a new
one. In a cluster its Pod's token does, and nobody is needed.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from supervisor_middleware.cli.status.asking import inspecting
from supervisor_middleware.cli.status.reach import Target, reached_locally
from supervisor_middleware.errors import SupervisorMiddlewareError
from supervisor_middleware.pki.bundles import parse_bundle
from supervisor_middleware.pki.files import read_file
from supervisor_middleware.pki.profiles import key_identifier
from supervisor_middleware.pki.store import BUNDLE_FILE, join_tokens
from supervisor_middleware.wire.gen import inspection_pb2 as pb

MAX_NAMED: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Of joins and roots: sandboxes are `namespace/name`, roots their key identifiers."""

    joined: frozenset[str] = frozenset()
    invited: frozenset[str] = frozenset()
    roots: frozenset[str] = frozenset()


async def needs_at(state: Path, *, now: datetime) -> tuple[str, ...]:
    """What the running control plane of `state` leaves to a person; nothing, if it or its files cannot be asked."""
    with suppress(SupervisorMiddlewareError, OSError):
        async with inspecting(reached_locally(Target(state=state), state)) as inspector:
            return needs_of(await inspector.everything(pb.Filter()), state, now=now)
    return ()


def needs_of(answer: pb.SupervisorList, state: Path, *, now: datetime) -> tuple[str, ...]:
    """The same, where the answer is there already."""
    with suppress(SupervisorMiddlewareError):
        return tuple(told(answer, known_of(state, answer, now=now), state=state, now=now))
    return ()


def known_of(state: Path, answer: pb.SupervisorList, *, now: datetime) -> Known:
    """What the state directory says.

    Raises:
        SupervisorMiddlewareError: it cannot be read.
    """
    with join_tokens(state) as tokens:
        joined = frozenset(f"{i.namespace}/{i.sandbox}" for i in tokens.standing())
        open_to = (
            (s.namespace, s.sandbox) for s in answer.supervisors if tokens.is_open(s.namespace, s.sandbox, now)
        )
        invited = frozenset("/".join(place) for place in open_to)
    roots = parse_bundle(read_file(state / BUNDLE_FILE) or b"")
    return Known(joined=joined, invited=invited, roots=frozenset(map(key_identifier, roots)))


def told(answer: pb.SupervisorList, known: Known, *, state: Path, now: datetime) -> Iterator[str]:
    """Lines for people: who needs what, and which commands give it. PURE."""
    away = [s for s in answer.supervisors if s.state == pb.SUPERVISOR_STATE_NOT_CONNECTED]
    found = [(_place(s), why) for s in away if (why := _why(s, known, now=now))]
    for place, why in found[:MAX_NAMED]:
        yield f"{place} {why}"
        if place not in known.invited:
            yield f"  here:               smw token create {place} --state {state}"
        yield "  at the supervisor:  what that printed into its token file; it goes on by itself, without a restart"
    if len(found) > MAX_NAMED:
        yield f"and {len(found) - MAX_NAMED} more need a join token"
    if any(_GIVEN_UP in why for _, why in found):
        yield f"where --trust-bundle is a copy of {state / BUNDLE_FILE}, it must be copied there first"


_GIVEN_UP: Final = "the root of its certificate was given up"


def _why(supervisor: pb.Supervisor, known: Known, *, now: datetime) -> str:
    reason = _reason(supervisor, known, now=now)
    if not reason:
        return ""
    if _place(supervisor) in known.invited:
        return f"can join by the token that was made for it ({reason})"
    return f"needs a new join token: {reason}"


def _reason(supervisor: pb.Supervisor, known: Known, *, now: datetime) -> str:
    if _place(supervisor) not in known.joined:
        return "it has not joined, or its join was revoked"
    if not supervisor.certificate_issuer:
        return ""  # not seen since the control plane began: its certificate may be good
    if supervisor.certificate_issuer not in known.roots:
        return _GIVEN_UP
    ends = supervisor.certificate_expires_at.ToDatetime(tzinfo=UTC)
    return f"its certificate ended at {ends:%Y-%m-%dT%H:%M:%SZ}" if ends <= now else ""


def _place(supervisor: pb.Supervisor) -> str:
    return f"{supervisor.namespace}/{supervisor.sandbox}"

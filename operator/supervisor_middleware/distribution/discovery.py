"""Who is connected, what each should run, and what each said: the ledger and the streams around it. Makes no call.

A generation is serialized once and its bytes fanned out. A new stream of a supervisor ends its old one; the stream of
a sandbox that is gone, or has another name than the certificate says, is closed. One change costs what it concerns.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Final

import grpc
import structlog

from supervisor_middleware.audit.events import Event as Audited
from supervisor_middleware.distribution.attendance import Attendance, Leaf, Standing
from supervisor_middleware.distribution.census import Census, census_of, is_old
from supervisor_middleware.distribution.complaints import Complaints
from supervisor_middleware.distribution.guests import Guest
from supervisor_middleware.distribution.ledger import Answer, Event, Ledger, State, View, Wish
from supervisor_middleware.distribution.offers import Assignment, Offers
from supervisor_middleware.distribution.rejections import Rejections
from supervisor_middleware.distribution.reports import answer_of, record_of
from supervisor_middleware.distribution.streams import NOT_LEADING, End, Stream
from supervisor_middleware.pki.spiffe import SandboxIdentity
from supervisor_middleware.telemetry import ControlMetrics
from supervisor_middleware.wire.gen import distribution_pb2 as pb

REPORTS_AN_OFFER: Final = 4
"""What each offer allows of reports: its answers are no noise."""
RENEW: Final = End(grpc.StatusCode.UNAUTHENTICATED, "the root of this certificate is given up: renew it")
GONE: Final = End(grpc.StatusCode.PERMISSION_DENIED, "the sandbox is gone")
NOT_OURS: Final = End(grpc.StatusCode.UNAUTHENTICATED, "the certificate names no sandbox of ours")
_TAKEN_OVER: Final = End(grpc.StatusCode.ABORTED, "a newer stream of this supervisor took over")

_log = structlog.get_logger(__name__)


class Discovery:
    """Everything the control plane wants of distribution; `watch.Watch` puts it on a wire."""

    def __init__(
        self,
        *,
        epoch: int,
        trust_bundle: Callable[[], bytes],
        changed: Callable[[], None],
        now: Callable[[], datetime],
        metrics: ControlMetrics | None = None,
        audit: Callable[[Audited], None] = lambda _: None,
        leads: Callable[[], bool] = lambda: True,
        objection: Callable[[SandboxIdentity, Leaf], str] = lambda _identity, _leaf: "",
    ) -> None:
        """`changed` is called whenever a supervisor's standing changed; `audit` takes audit events.

        Nothing is said to anybody unless `leads`. `now` is the clock of certificates. `objection` says why a
        certificate that TLS accepts counts no more (for our log), or nothing.
        """
        self._epoch = epoch
        self._changed = changed
        self._now = now
        self.leads, self._is_leaving = leads, False
        self._objection = objection
        self._offers = Offers(epoch=epoch, trust_bundle=trust_bundle)
        self._ledger = Ledger(epoch=epoch)
        self._places: dict[str, tuple[str, str]] = {}
        self._streams: dict[str, Stream] = {}
        self._rejections = Rejections(metrics=metrics, audit=audit)
        self._attendance = Attendance()
        self._complaints = Complaints()
        self._published = asyncio.Condition()
        self._has_published = False
        self.moves = 0
        """Grows whenever a supervisor may stand elsewhere."""

    # ------------------------------------------------------------------------------------------- the control plane's

    @property
    def encodings(self) -> int:
        """How many offers were serialized so far: as many as there were distinct ones, not as many as were sent."""
        return self._offers.encodings

    async def publish(self, changes: Mapping[str, Assignment | None]) -> None:
        """What some sandboxes (by supervisor key) should run from now on; None for one that is no more.

        Its stream is closed.
        """
        left = {wish.digest for key in changes if (wish := self._ledger.wish(key)) is not None}
        for key, assigned in changes.items():
            self._place(key, assigned)
        digests = {key: None if a is None else a.sealed.digest for key, a in changes.items()}
        for key, wish in self._ledger.publish(digests, at=self._now()):
            self._send(key, wish)
        for digest in left:
            if not self._ledger.is_wished(digest):
                self._offers.forget(digest)
        self.moves += 1
        self._has_published = True
        async with self._published:
            self._published.notify_all()

    def view(self, key: str, digest: str) -> View:
        """How a supervisor stands with a generation, published already or not."""
        return self._ledger.view(key, digest)

    def standing(self, key: str) -> Standing:
        """All that is known of one supervisor."""
        return Standing(
            desired=self._ledger.wish(key), record=self._ledger.record(key), visits=self._attendance.of(key)
        )

    def states(self) -> Mapping[str, int]:
        """How many supervisors are in which state."""
        wishes = ((key, self._ledger.wish(key)) for key in self._ledger.keys)
        views = (self.view(key, wish.digest) for key, wish in wishes if wish is not None)
        return Counter(view.state.value if view.is_connected else "not_connected" for view in views)

    def revise(self) -> None:
        """End the streams of those whose certificate counts no more."""
        for key in tuple(self._streams):
            self.revise_one(key)

    def revise_one(self, key: str) -> None:
        """The same, of one supervisor."""
        stream = self._streams.get(key)
        if stream is not None and (reason := self.objection(stream.guest)):
            _log.warning("a supervisor loses its stream", supervisor=key, reason=reason)
            self._end(stream, NOT_OURS)

    def census(
        self, *, trust_bundle: str, issuer: str, may_hold: Callable[[str], bool] = lambda _: True
    ) -> Census | None:
        """How many have the trust bundle of this digest, and a certificate of the root with this key identifier.

        None before anything is published: nobody is known yet, and that is not to be taken for nobody.
        """
        if not self._has_published:
            return None
        standings = ((key, self.standing(key)) for key in self._ledger.keys)
        return census_of(standings, trust_bundle=trust_bundle, issuer=issuer, may_hold=may_hold)

    def tell_bundle(self) -> None:
        """Send the trust bundle, once a stream, to those who said that they have another.

        An offer that waits for its turn on a stream carries one too, and is not replaced.
        """
        digest = self._offers.bundle_digest
        for key, stream in self._streams.items():
            record = self._ledger.record(key)
            if record is not None and record.trust_bundle != digest and stream.is_idle and stream.told != digest:
                stream.told = digest
                stream.put(self._offers.greeting(record.trust_bundle))

    def renew(self, *, issuer: str, at_most: int, spared: Container[str] = ()) -> frozenset[str]:
        """End streams of some whose certificate is not of the root with this key identifier; who (by key).

        They get another one, and may come back by the one they have, as long as it is believed.
        """
        old = (key for key in self._streams if key not in spared and is_old(self.standing(key), issuer=issuer))
        chosen = frozenset(islice(old, at_most))
        for key in chosen:
            self._streams[key].close(RENEW)
        return chosen

    def leave(self) -> None:
        """Say nothing more, and end every stream."""
        self._is_leaving = True
        for stream in self._streams.values():
            stream.close(NOT_LEADING)

    def leave_slowly(self, *, pace: float, at_most: float, random: Callable[[], float]) -> None:
        """Say nothing more, and end so many streams a second, all of them after `at_most` seconds.

        Supervisors look for whoever leads next; all at once they would be a herd.
        """
        if self._is_leaving:
            return
        self._is_leaving = True
        loop, streams = asyncio.get_running_loop(), tuple(self._streams.values())
        step = min(1 / pace, at_most / max(len(streams), 1))
        for number, stream in enumerate(streams):
            loop.call_later(step * (number + random()), stream.close, NOT_LEADING)

    # ---------------------------------------------------------------------------------------------- a supervisor's

    def speaks(self) -> bool:
        """Whether anything may be said to supervisors at this moment."""
        return self.leads() and not self._is_leaving

    def objection(self, guest: Guest) -> str:
        """Why a certificate that TLS accepted counts no more, or nothing."""
        if guest.leaf.expires_at <= self._now():
            # Established TLS outlives a certificate.
            return f"the certificate of {guest.key} has expired"
        return self._objection(guest.identity, guest.leaf)

    async def until_placed(self, key: str) -> None:
        """Wait until the sandbox of a supervisor is known."""
        async with self._published:
            await self._published.wait_for(lambda: key in self._places)

    def is_placed(self, guest: Guest) -> bool:
        """Whether its sandbox is there, under the name that the certificate says."""
        return self._places.get(guest.key) == guest.place

    def open(self, guest: Guest, hello: pb.Hello) -> Stream:
        """A supervisor that is placed said hello; its stream, with what to send first."""
        key, now = guest.key, self._now()
        if key in self._streams:
            self._streams[key].close(_TAKEN_OVER)
        stream = self._streams[key] = Stream(guest)
        self._attendance.came(key, guest.leaf)
        if hello.epoch > self._epoch:
            # Its word moves nobody: whoever is behind a certificate could end every leader's term with it.
            event = "a supervisor follows a newer operator, and will refuse this one's"
            self._complaints.tell(_log.warning, event, supervisor=key)
        record = replace(record_of(key, hello), connected_since=now, since=now)
        wish = self._ledger.connected(record)
        if wish is not None:
            self._send(key, wish)
        else:
            stream.put(self._offers.greeting(record.trust_bundle))
        self._move()
        return stream

    def left(self, stream: Stream) -> None:
        """A stream ended."""
        key = stream.guest.key
        if self._streams.get(key) is stream:
            del self._streams[key]
            self._ledger.disconnected(key)
            self._attendance.left(key, at=self._now())
            self._move()

    def hear(self, stream: Stream, report: pb.SupervisorReport) -> None:
        """Take a report, if it says anything."""
        if self._streams.get(stream.guest.key) is not stream or not self.speaks():
            return
        wish = self._ledger.wish(stream.guest.key)
        wished = "" if wish is None else wish.digest
        answer = answer_of(report, wished=wished, services=self._offers.services(wished))
        if answer is not None:
            self._take(stream, answer)
            stream.answered()

    def is_answering(self, stream: Stream) -> bool:
        """Whether an offer to it is under way."""
        record = self._ledger.record(stream.guest.key)
        return record is not None and record.state is State.OFFERED

    # ------------------------------------------------------------------------------------------------------ inside

    def _take(self, stream: Stream, answer: Answer) -> None:
        key = stream.guest.key
        before = self._ledger.record(key)
        wish = self._ledger.reported(key, answer, at=self._now())
        if wish is not None:
            self._send(key, wish)
        after = self._ledger.record(key)
        if before is after or before == after or before is None or after is None:
            return
        if answer.event is Event.REJECTED and after.rejected != before.rejected:
            self._rejections.tell(key, answer, subject="Sandbox {}/{}".format(*stream.guest.place))
        self._move()

    def _send(self, key: str, wish: Wish) -> None:
        stream = self._streams.get(key)
        if stream is None:
            return
        if self.speaks():
            stream.reports.grant(REPORTS_AN_OFFER, now=asyncio.get_running_loop().time())
            stream.put(self._offers.encode(wish))
        elif not self._is_leaving:
            stream.close(NOT_LEADING)

    def _place(self, key: str, assigned: Assignment | None) -> None:
        place = None if assigned is None else (assigned.sandbox.namespace, assigned.sandbox.name)
        if (stream := self._streams.get(key)) is not None and stream.guest.place != place:
            self._end(stream, GONE)
        if assigned is not None and place is not None:
            self._places[key] = place
            self._offers.learn(assigned.sealed)
        else:
            self._places.pop(key, None)
            self._attendance.forget(key)
            self._rejections.forget(key)

    def _end(self, stream: Stream, end: End) -> None:
        stream.close(end)
        self.left(stream)

    def _move(self) -> None:
        self.moves += 1
        self._changed()

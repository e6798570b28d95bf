"""Places for what lasts as long as somebody wants it: the newest of a viewer counts, and who has the most gives way.

Nobody waits here for another's end, which may never come. A viewer's newest takes the place of its own oldest; when
all places are taken, of the oldest of whoever has the most. It is refused only where all have as little as it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from supervisor_middleware.distribution.shares import Owner, first_to_yield
from supervisor_middleware.distribution.turns import TooMany

_PAUSE: Final = 30.0


@dataclass(slots=True, eq=False)
class Seat:
    """One place. `lost` says why it is somebody else's by now; whoever sits there looks, and leaves."""

    owner: Owner
    lost: str = ""


class Seats:
    """`places` of all, `of_one` of one member, in whatever groups."""

    def __init__(self, places: int, *, of_one: int) -> None:
        self._places, self._of_one = places, of_one
        self._taken: list[Seat] = []

    @contextmanager
    def seat(self, owner: Owner) -> Iterator[Seat]:
        """Have a place in the block, until it is lost.

        Raises:
            TooMany: all places are taken, by those who have no more than `owner` would.
        """
        self._make_room(owner)
        seat = Seat(owner)
        self._taken.append(seat)
        try:
            yield seat
        finally:
            if seat in self._taken:
                self._taken.remove(seat)

    def _make_room(self, owner: Owner) -> None:
        own = [s for s in self._taken if s.owner.member == owner.member]
        if len(own) >= self._of_one:
            self._lose(own[0], f"a newer one of the same viewer took its place: one has {self._of_one} at once")
        elif len(self._taken) >= self._places:
            # Where all have the same, its own group's oldest stands first; then itself.
            newcomer = Seat(owner)
            others = [s for s in self._taken if s.owner.group != owner.group]
            seats = [*(s for s in self._taken if s.owner.group == owner.group), newcomer, *others]
            yields = seats[first_to_yield([s.owner for s in seats])]
            if yields is newcomer:
                raise TooMany(f"all {self._places} places are taken", pause=_PAUSE)
            self._lose(yields, f"all {self._places} places were taken, and its namespace had the most")

    def _lose(self, seat: Seat, reason: str) -> None:
        seat.lost = reason
        self._taken.remove(seat)

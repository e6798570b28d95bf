"""What a conversion has to say of what it could not carry over as it was. PURE. Paths are shown, values never."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from supervisor_middleware.compiler.structure import path_of
from supervisor_middleware.model.canonical import JsonObject, JsonValue


class Grade(StrEnum):
    """What became of a field."""

    LOST = "lost"
    """The result does not say it any more."""
    CHANGED = "changed"
    """The result says it otherwise, or needs a look."""
    SKIPPED = "skipped"
    """It is no matter of this conversion, and stays where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """One field: what became of it, whose it is (a file or an object), where it stands, and why."""

    grade: Grade
    subject: str
    path: str
    message: str

    def to_json(self) -> JsonObject:
        """The form of `-o json`."""
        return {"grade": self.grade.value, "subject": self.subject, "path": self.path, "message": self.message}


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """The documents of the other form, in order, and everything there is to say."""

    documents: tuple[JsonObject, ...]
    remarks: tuple[Remark, ...]

    @property
    def is_complete(self) -> bool:
        """Whether nothing was lost."""
        return all(r.grade is not Grade.LOST for r in self.remarks)


@dataclass(slots=True)
class Notes:
    """Collects the remarks about one subject."""

    subject: str
    remarks: list[Remark] = field(default_factory=list)

    def lost(self, at: Iterable[str | int], message: str) -> None:
        """The result does not say what stands there."""
        self._add(Grade.LOST, at, message)

    def changed(self, at: Iterable[str | int], message: str) -> None:
        """The result says it otherwise, or needs a look."""
        self._add(Grade.CHANGED, at, message)

    def skipped(self, at: Iterable[str | int], message: str) -> None:
        """It is no matter of this conversion."""
        self._add(Grade.SKIPPED, at, message)

    def _add(self, grade: Grade, at: Iterable[str | int], message: str) -> None:
        self.remarks.append(Remark(grade=grade, subject=self.subject, path=path_of(at), message=message))


_WORDS: Final = {str: "a string", int: "an integer", bool: "true or false", dict: "an object", list: "a list"}


def taken(value: JsonValue, kind: type, *, at: Iterable[str | int], notes: Notes) -> bool:
    """Whether `value` has the form its field needs; if not it is lost, and said so."""
    if type(value) is kind:  # not isinstance: True is an int to Python
        return True
    notes.lost(at, f"must be {_WORDS[kind]}")
    return False

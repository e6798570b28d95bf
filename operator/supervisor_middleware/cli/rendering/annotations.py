"""Annotations of a CI run on GitHub: a line of output that becomes a remark beside a line of a file. PURE.

https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
"""

from enum import StrEnum

from supervisor_middleware.sources.folder import Location


class Level(StrEnum):
    """How loud a remark is."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


def annotation(level: Level, text: str, *, title: str, where: Location | None = None) -> str:
    """One remark; without a place it stands with the run itself."""
    place = "" if where is None else f"file={_property(where.file)},line={where.line},"
    return f"::{level.value} {place}title={_property(title)}::{plain(text)}"


def plain(text: str) -> str:
    """Text as the log shows it: nothing in it is taken for a command of its own."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return plain(text).replace(":", "%3A").replace(",", "%2C")

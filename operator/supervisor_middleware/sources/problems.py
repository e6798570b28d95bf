"""What is wrong with a text, by line. PURE; a folder turns these into violations about a file."""

from dataclasses import dataclass
from typing import Final

import yaml

from supervisor_middleware.model.violation import Reason

MAX_PROBLEMS: Final = 100
"""Of one document: nobody mends more at once, and a hostile file would have millions."""

# Hints by the parser's own words, which are fixed texts.
_HINTS: Final = (
    ("mapping values are not allowed", "quote a value that contains a colon and a space; check the indentation"),
    ("tab character", "indent with spaces, not tabs"),
    ("cannot start any token", "indent with spaces, not tabs; quote values that begin with @, ` or %"),
    ("<document start>", "kubectl silently ignores everything from here on; begin a document with a line ---"),
    ("control characters", "the file seems not to be text"),
    ("block end", "check the indentation"),
    ("block mapping", "check the indentation"),
    ("flow mapping", "close what { opens, with commas between; quote text that begins with {"),
    ("flow sequence", "close what [ opens, with commas between; quote text that begins with ["),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something wrong with a text, by line; `path` is the field where it is known."""

    line: int
    reason: Reason = Reason.MALFORMED
    message: str
    hint: str = ""
    path: str = ""


class Refused(ValueError):  # noqa: N818 - named for what happened to the text
    """Reading cannot go on; carries the one problem that stopped it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def syntax_problem(error: yaml.YAMLError, *, first_line: int) -> Problem:
    """What the parser says, without the excerpt of the file that PyYAML adds: it may hold a secret."""
    line, words = first_line, str(getattr(error, "reason", "it cannot be read"))
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line += mark.line if mark is not None else 0
        words = ", ".join(t for t in (error.context, error.problem) if t)
    hint = next((hint for known, hint in _HINTS if known in words), "")
    return Problem(line=line, message=f"is no YAML: {words}", hint=hint)

"""The bytes of a file to the JSON documents kubectl reads from it. PURE: no input raises, all of them end.

Cuts a stream where kubectl does (a line that begins with `---`, or JSON objects one after another) and reads each
document by itself, so that a broken one does not hide what is wrong with the next. Knows nothing of kinds.
"""

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final

from supervisor_middleware.model.canonical import JsonValue
from supervisor_middleware.model.limits import MIB
from supervisor_middleware.model.violation import Reason
from supervisor_middleware.sources.json_values import JsonText, without_surrogates
from supervisor_middleware.sources.problems import Problem, Refused
from supervisor_middleware.sources.yaml_values import build

MAX_FILE_BYTES: Final = 16 * MIB
MAX_DOCUMENTS: Final = 50_000

_SEPARATOR: Final = "---"
_BOMS: Final = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_SPACE: Final = re.compile(r"\s*")
_ESCAPED_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
# kubectl's own rule: a stream of which more than one JSON object was read is never YAML.
_UNAMBIGUOUS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document; `line` is where it begins, `size` its bytes with aliases written out."""

    line: int
    value: JsonValue
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What a file holds, and everything that is wrong with it. Documents with a problem are not among `documents`."""

    documents: tuple[Document, ...] = ()
    problems: tuple[Problem, ...] = ()


def read_documents(content: bytes) -> Parsed:
    """Every document of a file, in order; empty ones are left out."""
    documents: list[Document] = []
    problems: list[Problem] = []
    try:
        for found in _each(_decoded(content)):
            if isinstance(found, Document):
                documents.append(found)
            else:
                problems.append(found)
            if len(documents) > MAX_DOCUMENTS:
                problems.append(_too_many(found.line))
                break
    except Refused as error:
        problems.append(error.problem)
    return Parsed(documents=tuple(documents), problems=tuple(problems))


def lines_of(content: bytes, document: Document) -> dict[str, int]:
    """Where the fields of `document` stand in its file, by path; empty where that cannot be told."""
    lines: dict[str, int] = {}
    try:
        text = "\n".join(_decoded(content).split("\n")[document.line - 1 :])
        _, chunk = next(_chunks(text))
        build(chunk, first_line=document.line, lines=lines)
    except (Refused, StopIteration):
        return lines
    return lines


def _too_many(line: int) -> Problem:
    message = f"holds more than {MAX_DOCUMENTS} documents"
    return Problem(line=line, reason=Reason.TOO_MANY, message=message, hint="split the file")


def _decoded(content: bytes) -> str:
    if len(content) > MAX_FILE_BYTES:
        raise Refused(
            Problem(
                line=1,
                reason=Reason.TOO_LARGE,
                message=f"is larger than {MAX_FILE_BYTES} bytes, the limit of a file",
                hint="split it",
            )
        )
    bom, encoding = next(((b, e) for b, e in _BOMS if content.startswith(b)), (b"", "utf-8"))
    try:
        text = content[len(bom) :].decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise Refused(Problem(line=line, message="is not UTF-8 text", hint="save it as UTF-8")) from None
    if (nul := text.find("\0")) >= 0:
        line = text[:nul].count("\n") + 1
        raise Refused(Problem(line=line, message="holds a NUL byte: it is no text", hint="remove the file"))
    return text


def _each(text: str) -> Iterator[Document | Problem]:
    line = 1
    if text.lstrip().startswith("{"):
        end = yield from _json(text)
        head, text = text[:end], text[end:]
        line += head.count("\n")
        if not text.strip():
            return
    for offset, chunk in _chunks(text):
        yield from _yaml(chunk, line + offset)


def _json(text: str) -> Generator[Document | Problem, None, int]:
    """The JSON objects a stream begins with; returns where YAML goes on."""
    end = count = counted = 0
    line = 1
    while True:
        start = _space_ends(text, end)
        line += text.count("\n", counted, start)
        counted = start
        if start == len(text):
            return start
        try:
            found = JsonText(text, start, line)
        except ValueError:
            if count < _UNAMBIGUOUS:
                return _after_blank(text, end)
            yield Problem(line=line, message="is no JSON, though two objects before it are", hint="check the syntax")
            return len(text)
        count, end = count + 1, found.end
        if found.problems:
            yield from found.problems
        elif found.value is not None:
            source = text[start:end]
            yield Document(line=line, value=_tidied(found.value, source), size=len(source))


def _after_blank(text: str, end: int) -> int:
    """Past the rest of the line on which the last object ended, if it is blank: kubectl's `consumeWhitespace`."""
    after = _space_ends(text, end)
    newline = text.find("\n", end, after)
    return (after if newline < 0 else newline + 1) if end else 0


def _space_ends(text: str, start: int) -> int:
    found = _SPACE.match(text, start)
    return start if found is None else found.end()


def _yaml(chunk: str, line: int) -> Iterator[Document | Problem]:
    if chunk.startswith(_SEPARATOR):
        yield Problem(
            line=line,
            message="kubectl takes nothing but a comment on a line that begins with ---",
            hint="put the document on the next line",
        )
        return
    try:
        built = build(chunk, first_line=line)
    except Refused as error:
        yield error.problem
        return
    if built.problems:
        yield from built.problems
    elif built.value is not None:
        yield Document(line=line, value=_tidied(built.value, chunk), size=built.expanded)


def _chunks(text: str) -> Iterator[tuple[int, str]]:
    """The text between separators with the number of lines before it; a separator that is none stands alone."""
    # kubectl ends the last line if its author did not: block scalars at the end depend on it.
    start, lines = 0, text.removesuffix("\n").split("\n")
    for number, content in enumerate(lines):
        if not content.startswith(_SEPARATOR):
            continue
        rest = content[len(_SEPARATOR) :].strip()
        if start < number:
            yield start, "\n".join(lines[start:number]) + "\n"
        start = number + 1
        if rest and not rest.startswith("#"):
            yield number, content
    if start < len(lines):
        yield start, "\n".join(lines[start:]) + "\n"


def _tidied(value: JsonValue, source: str) -> JsonValue:
    return without_surrogates(value) if _ESCAPED_SURROGATE.search(source) else value

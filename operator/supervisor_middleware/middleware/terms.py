"""`acme/terms`: a small real service that finds literal terms in bodies and redacts or denies. PURE.

For demonstrations and tests, and as a model for authors. It looks at UTF-8 bodies only. In a body that is one JSON
document a term is looked for in each decoded string and in each number, so an escaped spelling does not hide it and
the result stays JSON; a term that spans several JSON tokens is not found. In any other text (form data, server-sent
events) a term is found as it is spelled. Letter case folds one character to one (`ß` is not `ss`). It does not look
at the target or the headers.
"""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NoReturn, Protocol

import re2

from supervisor_middleware.middleware.service import Middleware, http_binding, http_manifest
from supervisor_middleware.model.canonical import JsonObject, JsonValue
from supervisor_middleware.model.evaluation import Decision, Evaluation, FailureCode, Finding, Result, StageFailed
from supervisor_middleware.model.limits import KIB, MIB
from supervisor_middleware.model.manifest import Dialect, Manifest

BINDING_ID: Final = "acme/terms"
REPLACEMENT: Final = "[REDACTED]"
MAX_TERMS: Final = 100
MIN_TERM_CHARS: Final = 2
MAX_TERM_CHARS: Final = 256
INLINE_CHARS: Final = 64 * KIB

_KEYS: Final = frozenset({"terms", "action", "caseSensitive"})
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
# Lexical, for text that is known to be JSON; outside strings only scalars are of interest.
_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s{}\[\],:"]+')


class Action(StrEnum):
    """What a found term leads to."""

    REDACT = "redact"
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A valid config; `pattern` is RE2 source, so that equal configs share one compiled pattern."""

    action: Action
    pattern: str = field(repr=False)


class Terms(Middleware):
    """The service; stateless but for compiled patterns."""

    def __init__(self, *, dialect: Dialect = Dialect.RFC0009) -> None:
        binding = http_binding(BINDING_ID, max_body_bytes=MIB, timeout="1s")
        self.manifest: Manifest = http_manifest(binding, name="terms", version="1.0.0", dialect=dialect)

    async def validate_config(self, binding: str, config: JsonObject) -> str | None:
        """`terms` and `action` are needed, `caseSensitive` is optional; nothing else is known."""
        del binding
        parsed = parse_config(config)
        return parsed if isinstance(parsed, str) else None

    async def evaluate(self, evaluation: Evaluation) -> Result:
        """Redact every term, or deny where one is found.

        Raises:
            StageFailed: the config is not valid, or the body is neither UTF-8 text nor readable JSON.
        """
        config = parse_config(evaluation.config)
        if isinstance(config, str):
            raise StageFailed(FailureCode.SERVICE_ERROR)
        text, count = await _redacted(_text(evaluation.body), pattern=config.pattern)
        if not count:
            return Result(decision=Decision.ALLOW)
        finding = Finding(type="terms.match", label="Listed term", count=count, confidence="high", severity="medium")
        match config.action:
            case Action.REDACT:
                return Result(decision=Decision.ALLOW, body=text.encode("utf-8"), findings=(finding,))
            case Action.DENY:
                reason = "the body holds a listed term"
                return Result(decision=Decision.DENY, reason=reason, reason_code="term_found", findings=(finding,))


def parse_config(config: JsonObject) -> Config | str:
    """The config as a value, or what is wrong with it: keys and positions, never a value."""
    if set(config) - _KEYS:
        return "holds an unknown key: terms, action and caseSensitive are known"
    action, terms, case_sensitive = config.get("action"), config.get("terms"), config.get("caseSensitive", True)
    if not isinstance(action, str) or action not in set(Action):
        return "action must be redact or deny"
    if not isinstance(case_sensitive, bool):
        return "caseSensitive must be true or false"
    if not isinstance(terms, list | tuple) or not 1 <= len(terms) <= MAX_TERMS:
        return f"terms must be a list of 1 to {MAX_TERMS} strings"
    for index, term in enumerate(terms):
        if problem := _term_problem(term):
            return f"terms[{index}] {problem}"
    pattern = _pattern([str(term) for term in terms], prefix="" if case_sensitive else "(?i)")
    return Config(action=Action(action), pattern=pattern)


def redact(text: str, *, pattern: str) -> tuple[str, int]:
    """`text` without what `pattern` matches, and how many matches there were.

    Raises:
        StageFailed: JSON that nests too deeply to be read.
    """
    compiled = _compile(pattern)
    if not _is_json(text):
        return compiled.subn(_replacement, text)
    if "\\" not in text and compiled.search(text) is None:
        return text, 0
    total = 0

    def token(match: re.Match[str]) -> str:
        nonlocal total
        replaced, count = _redact_token(match.group(), pattern=compiled)
        total += count
        return replaced

    return _JSON_TOKEN.sub(token, text), total


async def _redacted(text: str, *, pattern: str) -> tuple[str, int]:
    # A body of half a million JSON tokens takes seconds: in a thread it holds up nobody else's request.
    if len(text) <= INLINE_CHARS:
        return redact(text, pattern=pattern)
    return await asyncio.to_thread(redact, text, pattern=pattern)


def _term_problem(term: JsonValue) -> str | None:
    if not isinstance(term, str) or not MIN_TERM_CHARS <= len(term) <= MAX_TERM_CHARS:
        return f"must be a string of {MIN_TERM_CHARS} to {MAX_TERM_CHARS} characters"
    if _SURROGATE.search(term):
        return "must be valid Unicode"
    # Otherwise a replacement could hold, or with its neighbours form, the very term it replaces.
    if "[" in term or "]" in term or term.casefold() in REPLACEMENT.casefold():
        return f"must not hold a square bracket, nor be a part of {REPLACEMENT}"
    return None


def _pattern(terms: list[str], *, prefix: str) -> str:
    # Longest first: RE2 takes the first alternative that matches, as Perl does.
    ordered = sorted(set(terms), key=lambda term: (-len(term), term))
    return prefix + "|".join(re2.escape(term) for term in ordered)


class _Pattern(Protocol):
    """What is used of a compiled RE2, which has no types of its own."""

    def search(self, text: str) -> object | None: ...

    def subn(self, repl: Callable[[object], str], text: str) -> tuple[str, int]: ...


def _compile(pattern: str) -> _Pattern:
    options = re2.Options()
    # RE2 would write the pattern, and so the terms, to standard error.
    options.log_errors = False
    compiled: _Pattern = re2.compile(pattern, options)  # cached by re2 itself
    return compiled


def _replacement(_: object) -> str:
    return REPLACEMENT


def _redact_token(token: str, *, pattern: _Pattern) -> tuple[str, int]:
    if not token.startswith('"'):
        _, count = pattern.subn(_replacement, token)
        return (json.dumps(REPLACEMENT), count) if count else (token, 0)
    # RE2 takes no lone surrogate, which JSON can escape; no term holds one.
    decoded = _SURROGATE.sub("\ufffd", json.loads(token))
    replaced, count = pattern.subn(_replacement, decoded)
    return (json.dumps(replaced, ensure_ascii=False), count) if count else (token, 0)


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        raise StageFailed(FailureCode.SERVICE_ERROR) from None


def _is_json(text: str) -> bool:
    try:
        # Numbers stay text: Python refuses integers of more than 4300 digits, and nothing here needs the value.
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse)
    except ValueError:
        return False
    except RecursionError:
        raise StageFailed(FailureCode.SERVICE_ERROR) from None
    return True


def _refuse(_: str) -> NoReturn:
    raise ValueError("NaN and infinities are not JSON")

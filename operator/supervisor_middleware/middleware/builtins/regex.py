"""`openshell/regex`: replaces what looks like an OpenAI-style API key in UTF-8 bodies. PURE.

RFC 0009 calls it a best-effort example: a fixed set of regular-expression replacements, not parser-aware, without a
guarantee of detection or of complete removal. Contract 4.15 fixes the pattern, the limit and the finding.
"""

from typing import Final

import re2

from supervisor_middleware.middleware.service import Middleware, http_binding, http_manifest
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.evaluation import Decision, Evaluation, FailureCode, Finding, Result, StageFailed
from supervisor_middleware.model.limits import KIB
from supervisor_middleware.model.manifest import Manifest

BINDING_ID: Final = "openshell/regex"
MAX_BODY_BYTES: Final = 256 * KIB
REPLACEMENT: Final = b"[REDACTED]"

# RE2: linear time whatever the body; the text is untrusted and the caller waits.
_OPENAI_KEY: Final = re2.compile(rb"sk-[A-Za-z0-9_-]{16,}")


class RegexRedactor(Middleware):
    """The built-in; stateless, so one instance serves every sandbox of a supervisor."""

    manifest: Manifest = http_manifest(
        http_binding(BINDING_ID, max_body_bytes=MAX_BODY_BYTES), name=BINDING_ID, version="1"
    )

    async def validate_config(self, binding: str, config: JsonObject) -> str | None:
        """`mode: redact` is the only and the default mode; another key is a mistake, not an extension."""
        del binding
        if set(config) - {"mode"}:
            return "holds an unknown key: mode is the only one"
        return None if config.get("mode", "redact") == "redact" else "mode must be redact"

    async def evaluate(self, evaluation: Evaluation) -> Result:
        """Replace each match.

        Raises:
            StageFailed: the body is not UTF-8 text, so nothing can be said about it.
        """
        if not _is_utf8(evaluation.body):
            raise StageFailed(FailureCode.SERVICE_ERROR)
        body, count = _OPENAI_KEY.subn(REPLACEMENT, evaluation.body)
        return _redacted(body, count=count) if count else Result(decision=Decision.ALLOW)


def _redacted(body: bytes, *, count: int) -> Result:
    finding = Finding(
        type="regex.openai", label="OpenAI-style API key", count=count, confidence="medium", severity="medium"
    )
    metadata = {"regex_matches_replaced": str(count)}
    return Result(decision=Decision.ALLOW, body=body, findings=(finding,), metadata=metadata)


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True

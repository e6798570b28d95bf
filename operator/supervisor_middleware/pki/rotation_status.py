"""Where a rotation stands, for people and programs. PURE: no key, and nothing that only administrators may know."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.pki.bundles import bundle_digest, parse_bundle
from supervisor_middleware.pki.profiles import is_own_root
from supervisor_middleware.pki.rotation import Rotation, Wait, next_stage
from supervisor_middleware.pki.rotation_requests import Stage

MAX_NAMES: Final = 20


def status_of(rotation: Rotation, waits: Sequence[Wait], *, problem: str = "") -> JsonObject:
    """What `smw ca status` shows; `problem` is what is wrong where the roots are kept."""
    is_steady = rotation.stage is Stage.STEADY
    return {
        "stage": rotation.stage.value,
        "since": _time(rotation.since),
        "cause": rotation.cause.value,
        "deadline": _time(rotation.deadline),
        "next": None if is_steady else next_stage(rotation.stage).value,
        "roots": list(_roots(rotation)),
        "waitsFor": [_wait(wait) for wait in waits],
        "request": rotation.handled,
        "problem": problem,
    }


def _roots(rotation: Rotation) -> Iterator[JsonObject]:
    roots = rotation.roots
    for pem in roots.retired:
        yield _root(pem, role="retired")
    yield _root(roots.current.certificate_pem, role="issuing")
    if roots.successor is not None:
        yield _root(roots.successor.certificate_pem, role="next")


def _root(pem: bytes, *, role: str) -> JsonObject:
    certificate = parse_bundle(pem)[0]
    return {
        "role": role,
        "digest": bundle_digest(pem),
        "origin": "own" if is_own_root(certificate) else "supplied",
        "notBefore": _time(certificate.not_valid_before_utc),
        "notAfter": _time(certificate.not_valid_after_utc),
    }


def _wait(wait: Wait) -> JsonObject:
    return {
        "reason": wait.awaited.value,
        "count": wait.count,
        "names": list(wait.names[:MAX_NAMES]),
        "until": _time(wait.until),
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

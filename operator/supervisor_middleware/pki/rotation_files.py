"""The roots of identities in the state directory of a standalone operator. A file edge.

`rotation.json` (0600) holds every root and where the rotation stands, replaced whole; `authority.pem` (0600) is a
copy of the root that issues, for older versions and for people, and follows it; `rotation-request` is what somebody
asked for; `rotation-status.json` is for people. See `store` for what lies beside them. A root may be supplied in
another directory (`supplied_root`), which is read at every look.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.pki.authority import LEAF_LIFETIME, ROOT_LIFETIME, Authority
from supervisor_middleware.pki.files import Mode, make_directory, permissions, read_file, replace_file
from supervisor_middleware.pki.root_parts import CURRENT, pair_of, parts_of
from supervisor_middleware.pki.rotation import Rotation
from supervisor_middleware.pki.rotation_record import Kept, Knowledge, StoredRotation, changes_to, stored_rotation
from supervisor_middleware.pki.rotation_requests import Request, parse_request
from supervisor_middleware.pki.store import AUTHORITY_FILE, BUNDLE_FILE, load_or_create_authority
from supervisor_middleware.pki.succession import Succession
from supervisor_middleware.pki.supplied_root import laid_over, require_foreign, supplied_parts

ROTATION_FILE: Final = "rotation.json"
REQUEST_FILE: Final = "rotation-request"
STATUS_FILE: Final = "rotation-status.json"

_ANYBODY: Final = 0o007


class RotationFiles:
    """The directory, for the one process that has it."""

    def __init__(
        self,
        directory: Path,
        *,
        trust_domain: str,
        root_lifetime: timedelta = ROOT_LIFETIME,
        leaf_lifetime: timedelta = LEAF_LIFETIME,
        supplied: Path | None = None,
    ) -> None:
        """The lifetimes are of what is made here, and of its leaves. `supplied` may hold somebody else's root."""
        self._directory, self._trust_domain, self._supplied = directory, trust_domain, supplied
        self._root_lifetime, self._leaf_lifetime = root_lifetime, leaf_lifetime

    def load_or_create(self, *, now: datetime) -> StoredRotation:
        """The roots kept here; a new one only where there never was one.

        Raises:
            InvalidInput: a file is corrupt, of another trust domain, expired or open to anybody; or the CA is missing
                although its bundle was published. Names the file.
            Unavailable: the disk fails.
        """
        make_directory(self._directory)
        if self._kept() is None and self._is_new and self._supplied is not None:
            self._begin_supplied(self._supplied, now=now)
        elif self._kept() is None:
            load_or_create_authority(
                self._directory, trust_domain=self._trust_domain, now=now, lifetime=self._root_lifetime
            )
        elif not (self._directory / AUTHORITY_FILE).exists():
            raise InvalidInput(
                f"{self._directory / AUTHORITY_FILE}: the CA is missing: restore it from a backup (or remove it, "
                f"{ROTATION_FILE} and {BUNDLE_FILE} to begin anew; every supervisor must then enrol again)"
            )
        stored = self._read(now=now, known=None)
        if stored is None:
            raise InvalidInput(f"{self._directory / AUTHORITY_FILE}: the CA does not stay")
        self._copy(stored.rotation.roots.current)
        return stored

    async def read(self, *, now: datetime, known: Rotation) -> StoredRotation | None:
        """What is kept; None: it is gone.

        Raises:
            InvalidInput: a file is corrupt; names it.
            Unavailable: the disk fails.
        """
        return await asyncio.to_thread(self._read, now=now, known=known)

    async def write(self, rotation: Rotation, *, over: StoredRotation, check: Callable[[], None]) -> bool:
        """Keep `rotation`; nobody else writes here.

        Raises:
            Unavailable: the disk fails.
        """
        del over
        check()
        await asyncio.to_thread(self._write, rotation)
        return True

    async def show(self, status: JsonObject, *, check: Callable[[], None]) -> None:
        """Let people see where the rotation stands.

        Raises:
            Unavailable: the disk fails.
        """
        check()
        content = json.dumps(status, indent=1).encode()
        await asyncio.to_thread(replace_file, self._directory / STATUS_FILE, content, mode=Mode.PUBLIC)

    def _read(self, *, now: datetime, known: Rotation | None) -> StoredRotation | None:
        if not (self._directory / AUTHORITY_FILE).exists():
            return None
        kept = self._kept() or self._alone(now=now)
        knowledge = self._knowledge(now=now, known=known)
        try:
            kept, problem = self._with_supplied(kept, knowledge)
            stored = stored_rotation(kept, knowledge, request=self._request())
            return replace(stored, problem=problem or stored.problem)
        except InvalidInput as error:
            raise InvalidInput(f"{self._directory / ROTATION_FILE}: {error}") from None

    @property
    def _is_new(self) -> bool:
        return not any((self._directory / name).exists() for name in (AUTHORITY_FILE, BUNDLE_FILE))

    def _knowledge(self, *, now: datetime, known: Rotation | None) -> Knowledge:
        return Knowledge(trust_domain=self._trust_domain, now=now, longest=self._leaf_lifetime, rotation=known)

    def _with_supplied(self, kept: Kept, knowledge: Knowledge) -> tuple[Kept, str]:
        """What is kept, with what is supplied in its place; and why that is not taken."""
        if self._supplied is None:
            return laid_over(kept, {}, knowledge), ""
        try:
            return laid_over(kept, supplied_parts(self._supplied), knowledge), ""
        except InvalidInput as error:
            return laid_over(kept, {}, knowledge), str(error)

    def _begin_supplied(self, directory: Path, *, now: datetime) -> None:
        """No root of ours is made where one is supplied from the start."""
        try:
            first = stored_rotation(Kept(parts=supplied_parts(directory)), self._knowledge(now=now, known=None))
            require_foreign(first.rotation.roots.current)
        except InvalidInput as error:
            raise InvalidInput(f"the CA in {directory} cannot be used: {error}") from None
        self._write(first.rotation)

    def _write(self, rotation: Rotation) -> None:
        changes = changes_to(rotation)
        # Also one that was supplied: whoever supplied it may take it away.
        issuer = {} if rotation.is_displaced else pair_of(CURRENT, rotation.roots.current)
        parts = {**changes.parts, **issuer}
        record = {
            "parts": {name: value.decode("ascii") for name, value in parts.items() if value is not None},
            "notes": dict(changes.notes),
        }
        replace_file(self._directory / ROTATION_FILE, json.dumps(record, indent=1).encode(), mode=Mode.PRIVATE)
        self._copy(rotation.roots.current)

    def _copy(self, issuer: Authority) -> None:
        path = self._directory / AUTHORITY_FILE
        content = issuer.certificate_pem + issuer.private_key_pem.reveal()
        if not (read_file(path) or b"").startswith(issuer.certificate_pem):
            replace_file(path, content, mode=Mode.PRIVATE)

    def _alone(self, *, now: datetime) -> Kept:
        """A directory in which no rotation was ever noted."""
        authority = load_or_create_authority(self._directory, trust_domain=self._trust_domain, now=now)
        parts = parts_of(Succession(current=authority))
        return Kept(parts={name: value for name, value in parts.items() if value is not None})

    def _kept(self) -> Kept | None:
        path = self._directory / ROTATION_FILE
        content = read_file(path)
        if content is None:
            return None
        if permissions(path) & _ANYBODY:
            raise InvalidInput(f"{path}: anybody can read or write the CA's key: chmod 600 it, and consider a new CA")
        try:
            value = json.loads(content)
            parts = {str(name): str(text).encode("ascii") for name, text in value["parts"].items()}
            return Kept(parts=parts, notes={str(name): str(text) for name, text in value["notes"].items()})
        except (AttributeError, KeyError, TypeError, ValueError):
            # The error's own text may quote the content.
            raise InvalidInput(f"{path}: is not what this version writes: restore it from a backup") from None

    def _request(self) -> Request | None:
        content = read_file(self._directory / REQUEST_FILE)
        return None if content is None else parse_request(content.decode("ascii", errors="replace").strip())


def request_rotation(directory: Path, request: Request) -> None:
    """Ask the process that has `directory`; it looks every few seconds.

    Raises:
        InvalidInput: the directory is not ours to write.
        Unavailable: the disk fails.
    """
    replace_file(directory / REQUEST_FILE, request.identifier.encode(), mode=Mode.PRIVATE)


def read_status(directory: Path) -> dict[str, Any]:
    """Where the rotation stands, as the process that has `directory` last said.

    Raises:
        InvalidInput: nobody said so there.
    """
    path = directory / STATUS_FILE
    content = read_file(path)
    if content is None:
        raise InvalidInput(f"{path}: no standalone control plane keeps its state here, or it has just started")
    try:
        value: dict[str, Any] = json.loads(content)
    except ValueError:
        raise InvalidInput(f"{path}: is not a status file of smw standalone") from None
    return value

"""The state directory of standalone: its counterpart of what the cluster stores. A file edge, for one process.

    revisions/<name>.json   accepted revisions, one file each, never changed
    status/<uid>.json       statuses; a policy's `accepted` is the commit point of a revision
    folder.json             what each file of the folder held when it was last readable
    status.json             all statuses in one, for people and `smw status`; made of the others, at leisure
    ca.crt                  the trust bundle (see `pki.store`)

Every file but the last two is verified when it is read. A damaged one is moved aside and reported, the rest goes on.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

import structlog

from supervisor_middleware.errors import InvalidInput, SupervisorMiddlewareError, Unavailable
from supervisor_middleware.model.canonical import JsonObject, ParsedJson
from supervisor_middleware.model.snapshot import Stored, StoredRevision
from supervisor_middleware.model.violation import Report, Subject, Violation, report
from supervisor_middleware.pki.files import Mode, make_directory, read_file, replace_file
from supervisor_middleware.pki.store import BUNDLE_FILE
from supervisor_middleware.sources.assembly import about_file
from supervisor_middleware.sources.cluster_bodies import revision_body
from supervisor_middleware.sources.cluster_objects import revision_from
from supervisor_middleware.sources.memory import Memory
from supervisor_middleware.sources.state_files import (
    Damaged,
    lock,
    move_aside,
    read_sealed,
    remove,
    sealed_files,
    unlock,
    write_sealed,
)

STATUS_FILE: Final = "status.json"

_REVISIONS: Final = "revisions"
_STATUSES: Final = "status"
_FOLDER: Final = "folder.json"
_SUMMARY_DELAY: Final = 0.1
_HINT: Final = "what it held is decided anew; restore it from a backup if it must not be"
_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,127}")

_log = structlog.get_logger(__name__)
_Value = TypeVar("_Value")


class StateStore:
    """Where standalone keeps its decisions: `control.reconciler.Store`, and `sources.folder.State`."""

    def __init__(self, directory: Path) -> None:
        """Take `directory` for this process and read what is there.

        Raises:
            InvalidInput: another standalone uses it, or it is not ours to read.
            Unavailable: the disk fails.
        """
        self.directory = directory
        self._lock = lock(directory)
        self._damage: list[Violation] = []
        self._notices: dict[Subject, tuple[str, str]] = {}
        self._found = Report()
        self._is_summary_stale = False
        self._summarizing: asyncio.Task[None] | None = None
        try:
            for name in (_REVISIONS, _STATUSES):
                make_directory(directory / name)
            self._revisions = {r.name: r for r in self._load_all(_REVISIONS, revision_from)}
            self._statuses = {str(s["uid"]): s for s in self._load_all(_STATUSES, _status_record)}
            self._memory = self._load(directory / _FOLDER, Memory.from_json) or Memory()
        except BaseException:
            unlock(self._lock)
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish what is under way and give the directory back."""
        if self._summarizing is not None:
            await self._summarizing
        unlock(self._lock)

    # ------------------------------------------------------------------------------------------- what was persisted

    @property
    def problems(self) -> Report:
        """What was damaged when the directory was read."""
        return report(self._damage)

    def revisions(self) -> tuple[StoredRevision, ...]:
        """Persisted revisions, by name."""
        return tuple(r for _, r in sorted(self._revisions.copy().items()))

    def statuses(self) -> Mapping[str, JsonObject]:
        """Statuses by the object's UID."""
        # Called from a thread while the loop writes: a copy is one step, walking the original is not.
        return {uid: s["status"] for uid, s in self._statuses.copy().items()}

    def memory(self) -> Memory:
        """What the folder held."""
        return self._memory

    def remember(self, memory: Memory) -> None:
        """Replace what the folder held, durably; statuses of what is gone for good go with it.

        Raises:
            Unavailable, InvalidInput: it cannot be written.
        """
        write_sealed(self.directory / _FOLDER, memory.to_json())
        self._memory = memory
        for uid in self._statuses.copy().keys() - memory.identities.keys():
            remove(self._path(_STATUSES, uid))
            self._statuses.pop(uid, None)

    def show(self, problems: Report) -> None:
        """Put what is wrong with the folder's files beside the statuses, for people; must run in the event loop."""
        if problems != self._found:
            self._found = problems
            self._request_summary()

    # ------------------------------------------------------------------------------------------------ the store

    async def save_revision(self, stored: StoredRevision) -> None:
        """Create a revision; one that is there already, with the same digest, is fine.

        Raises:
            Unavailable: another revision has the name, or the disk fails.
        """
        existing = self._revisions.get(stored.name)
        if existing is not None:
            if existing.digest != stored.digest:
                raise Unavailable(f"revision {stored.name} is there already and says something else")
            return
        await _on_disk(lambda: write_sealed(self._path(_REVISIONS, stored.name), revision_body(stored)))
        self._revisions[stored.name] = stored

    async def delete_revision(self, name: str) -> None:
        """Remove a revision; an absent one is fine.

        Raises:
            Unavailable: the disk fails.
        """
        await _on_disk(lambda: remove(self._path(_REVISIONS, name)))
        self._revisions.pop(name, None)

    async def write_status(self, stored: Stored, status: JsonObject) -> None:
        """Replace a status, durably before this returns; `status.json` follows.

        Raises:
            Unavailable: the disk fails.
        """
        record = {
            "kind": stored.subject.kind,
            "namespace": stored.subject.namespace,
            "name": stored.subject.name,
            "uid": stored.uid,
            "generation": stored.generation,
            "status": status,
        }
        await _on_disk(lambda: write_sealed(self._path(_STATUSES, stored.uid), record))
        self._statuses[stored.uid] = record
        self._request_summary()

    async def publish_bundle(self, pem: bytes, *, namespaces: frozenset[str]) -> None:
        """Keep the trust bundle in `ca.crt`; namespaces mean nothing here.

        Raises:
            Unavailable: the disk fails.
        """
        del namespaces
        path = self.directory / BUNDLE_FILE

        def publish() -> None:
            if read_file(path) != pem:
                replace_file(path, pem, mode=Mode.PUBLIC)

        await _on_disk(publish)

    async def notify(self, subject: Subject, *, uid: str, reason: str, message: str, weight: str) -> None:
        """Log what an Event would say, unless it was the last one about `subject`."""
        if self._notices.get(subject) == (reason, message):
            return
        self._notices[subject] = (reason, message)
        log = _log.warning if weight == "Warning" else _log.info
        log(message, object=str(subject), reason=reason, uid=uid)

    # ------------------------------------------------------------------------------------------------------ private

    def _path(self, folder: str, name: str) -> Path:
        if _SAFE_NAME.fullmatch(name) is None:
            raise InvalidInput(f"{folder}: a name that cannot be a file's")
        return self.directory / folder / f"{name}.json"

    def _load_all(self, folder: str, convert: Callable[[ParsedJson], _Value]) -> Iterator[_Value]:
        for path in sealed_files(self.directory / folder):
            value = self._load(path, convert)
            if value is not None:
                yield value

    def _load(self, path: Path, convert: Callable[[ParsedJson], _Value]) -> _Value | None:
        try:
            content = read_sealed(path)
        except Damaged as error:
            self._set_aside(path, str(error))
            return None
        try:
            return None if content is None else convert(content)
        except (KeyError, TypeError, ValueError, AttributeError, InvalidInput):
            # The error's own text may quote the content.
            self._set_aside(path, "is not what this version writes")
            return None

    def _set_aside(self, path: Path, why: str) -> None:
        moved = move_aside(path)
        self._damage.append(about_file(str(path), "", f"{why}; it was moved to {moved.name}", hint=_HINT))

    def _request_summary(self) -> None:
        self._is_summary_stale = True
        if self._summarizing is None or self._summarizing.done():
            self._summarizing = asyncio.create_task(self._summarize())

    async def _summarize(self) -> None:
        """Write `status.json` once for a burst of statuses, and again if more came while it was written."""
        while self._is_summary_stale:
            await asyncio.sleep(_SUMMARY_DELAY)
            self._is_summary_stale = False
            await self._write_summary()

    async def _write_summary(self) -> None:
        objects = sorted(self._statuses.copy().values(), key=lambda s: (s["kind"], s["namespace"] or "", s["name"]))
        problems = [
            {"subject": str(v.subject), "path": v.path, "reason": v.reason.value, "message": v.message}
            for v in self._found.violations
        ]
        data = json.dumps({"objects": objects, "problems": problems}, indent=1).encode()
        try:
            await asyncio.to_thread(replace_file, self.directory / STATUS_FILE, data, mode=Mode.PUBLIC)
        except SupervisorMiddlewareError as error:
            _log.warning("the summary of statuses could not be written", reason=str(error))


def _status_record(value: ParsedJson) -> ParsedJson:
    """A status file's content.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    if not isinstance(value["status"], dict) or not all(isinstance(value[k], str) for k in ("kind", "name", "uid")):
        raise ValueError("no status")
    return value


async def _on_disk(write: Callable[[], None]) -> None:
    """Write off the event loop; whatever the disk says is the caller's to try again."""
    try:
        await asyncio.to_thread(write)
    except InvalidInput as error:
        raise Unavailable(str(error)) from error

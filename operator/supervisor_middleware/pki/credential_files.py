"""Credentials in a directory: `tls.crt`, `tls.key`, `ca.crt`. A file edge, for supervisors and what sits beside them.

Like kubelet's AtomicWriter: the three files are links through `..data` into a versioned directory, and a new version
appears by swapping that one link, so no reader that resolves `..data` first pairs a key with another's certificate.
One combined file would be simpler, but Envoy and services want these names; and a Secret that kubelet or cert-manager
mounts can be read by the same function.
"""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from supervisor_middleware.errors import Unavailable, Untrusted
from supervisor_middleware.pki.credentials import Credentials, CredentialsRefused, Part
from supervisor_middleware.pki.files import (
    Mode,
    locked,
    make_directory,
    read_file,
    sync_directory,
    translated,
    write_new,
)
from supervisor_middleware.pki.secret import SecretBytes

FILE_NAMES: Final[Mapping[Part, str]] = {
    Part.CERTIFICATE: "tls.crt",
    Part.KEY: "tls.key",
    Part.BUNDLE: "ca.crt",
}

_DATA: Final = "..data"
_VERSION_PREFIX: Final = "..v-"
_VERSION_MODE: Final = 0o755  # who may read is decided by the directory around it, and by the key's own mode
_READ_ATTEMPTS: Final = 5


def write_credentials(directory: Path, credentials: Credentials) -> None:
    """Replace what `directory` holds by `credentials`, as one step for every reader. The key's mode is 0600.

    The version before stays until the next write, for readers that are half-way through it.

    Raises:
        InvalidInput: the directory is not ours to write.
        Unavailable: the disk is full, or the like.
    """
    make_directory(directory)
    with locked(directory), translated(directory):
        version = _write_version(directory, credentials)
        previous = _target(directory)
        _link(directory / _DATA, target=version.name)
        for name in FILE_NAMES.values():
            _link(directory / name, target=f"{_DATA}/{name}")
        sync_directory(directory)
        _remove_versions(directory, keep={version.name, previous})


def read_credentials(directory: Path) -> Credentials | None:
    """The credentials in `directory`; None if it holds none at all (not enrolled yet).

    Raises:
        Untrusted: a file is missing, cut off, corrupt or another certificate's; names the file, never its content.
        InvalidInput: a file is not ours to read.
        Unavailable: written faster than read, or the disk fails.
    """
    for _ in range(_READ_ATTEMPTS):
        target = _target(directory)
        contents = {part: read_file(directory / target / name) for part, name in FILE_NAMES.items()}
        if None not in contents.values() or target == _target(directory):
            return _assembled(directory, contents)
    raise Unavailable(f"{directory}: rewritten while it was read")


def _write_version(directory: Path, credentials: Credentials) -> Path:
    version = Path(tempfile.mkdtemp(prefix=_VERSION_PREFIX, dir=directory))
    try:
        version.chmod(_VERSION_MODE)
        write_new(version / FILE_NAMES[Part.CERTIFICATE], credentials.certificate_chain_pem, mode=Mode.PUBLIC)
        write_new(version / FILE_NAMES[Part.KEY], credentials.private_key_pem.reveal(), mode=Mode.PRIVATE)
        write_new(version / FILE_NAMES[Part.BUNDLE], credentials.trust_bundle_pem, mode=Mode.PUBLIC)
        sync_directory(version)
    except BaseException:
        shutil.rmtree(version, ignore_errors=True)
        raise
    return version


def _target(directory: Path) -> str:
    """The version that is current; the directory itself if it is a plain one, or none yet."""
    with translated(directory):
        try:
            return str((directory / _DATA).readlink())
        except FileNotFoundError:
            return "."


def _link(path: Path, *, target: str) -> None:
    if path.is_symlink() and str(path.readlink()) == target:
        return
    staged = path.with_name(f"{_VERSION_PREFIX}link")
    staged.unlink(missing_ok=True)
    staged.symlink_to(target)
    staged.replace(path)


def _remove_versions(directory: Path, *, keep: set[str]) -> None:
    for entry in directory.iterdir():
        if entry.name.startswith(_VERSION_PREFIX) and entry.name not in keep:
            shutil.rmtree(entry, ignore_errors=True)


def _assembled(directory: Path, contents: Mapping[Part, bytes | None]) -> Credentials | None:
    found = {part: content for part, content in contents.items() if content is not None}
    if not found:
        return None
    if missing := [name for part, name in FILE_NAMES.items() if part not in found]:
        raise Untrusted(f"{directory / missing[0]}: the file is missing")
    try:
        return Credentials(
            certificate_chain_pem=found[Part.CERTIFICATE],
            private_key_pem=SecretBytes(found[Part.KEY]),
            trust_bundle_pem=found[Part.BUNDLE],
        )
    except CredentialsRefused as error:
        raise Untrusted(f"{directory / FILE_NAMES[error.part]}: {error}") from None

"""A root of identities that an administrator supplies to a standalone operator, in files. A file edge.

A directory with `tls.crt` and `tls.key`, as cert-manager writes them and kubelet mounts them. What lies there takes
the place that `tls.*` of the Secret has in a cluster: it follows the root that issues, in stages (`rotation_record`).
The directory is its supplier's: nothing is written there.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.files import permissions, read_file
from supervisor_middleware.pki.profiles import is_own_root
from supervisor_middleware.pki.root_parts import CURRENT, Parts, authority_from
from supervisor_middleware.pki.rotation_record import HELD, Kept, Knowledge

_NAMES: Final = (f"{CURRENT}.crt", f"{CURRENT}.key")
_DATA: Final = "..data"
_ANYBODY: Final = 0o007


def supplied_parts(directory: Path) -> dict[str, bytes]:
    """What lies in `directory`, of one version where it is mounted.

    Raises:
        InvalidInput: nothing does, or anybody can read the key; names the file.
        Unavailable: the disk fails.
    """
    version = directory / _DATA
    at = version.resolve() if version.exists() else directory
    parts = {name: content for name in _NAMES if (content := read_file(at / name)) is not None}
    if not parts:
        raise InvalidInput(f"{directory}: holds no {_NAMES[0]} and {_NAMES[1]}")
    if _NAMES[1] in parts and permissions(at / _NAMES[1]) & _ANYBODY:
        raise InvalidInput(f"{directory / _NAMES[1]}: anybody can read or write the CA's key: chmod 600 it")
    return parts


def laid_over(record: Kept, supplied: Parts, knowledge: Knowledge) -> Kept:
    """What is kept, as if `supplied` had been put into the place of the root that issues; nothing: as if never.

    PURE. Only a supplied root that is not the one that issues has that one held aside.

    Raises:
        InvalidInput: it is a root that we made ourselves: it would give way to our next one and come back, for ever.
    """
    name = HELD if f"{HELD}.crt" in record.parts else CURRENT
    issuing = _renamed(record.parts, name, CURRENT)
    others = {part: value for part, value in record.parts.items() if part.partition(".")[0] not in {HELD, CURRENT}}
    issuer, found = _authority(issuing, knowledge), _authority(supplied, knowledge)
    if not supplied or (found is not None and issuer is not None and found.certificate == issuer.certificate):
        return Kept(parts={**others, **issuing}, notes=record.notes)
    if found is not None:
        require_foreign(found)
    # One that has ended is of no use to anybody: what is supplied issues at once.
    held = {} if issuer is None else _renamed(issuing, CURRENT, HELD)
    return Kept(parts={**others, **held, **supplied}, notes=record.notes)


def require_foreign(root: Authority) -> None:
    """Return if somebody else made `root`.

    Raises:
        InvalidInput: we did.
    """
    if is_own_root(root.certificate):
        raise InvalidInput("it is a root that smw made: supply one with a subject of its own, or none")


def _authority(parts: Parts, knowledge: Knowledge) -> Authority | None:
    # What is wrong with one is said by whoever reads what we return.
    with suppress(InvalidInput):
        return authority_from(parts, CURRENT, trust_domain=knowledge.trust_domain, now=knowledge.now)
    return None


def _renamed(parts: Parts, name: str, new: str) -> dict[str, bytes]:
    """The root under `name`, under another."""
    endings = ("crt", "key")
    return {f"{new}.{e}": parts[f"{name}.{e}"] for e in endings if f"{name}.{e}" in parts}

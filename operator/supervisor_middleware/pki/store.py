"""The state directory of a standalone operator: its CA, the bundle it published, its join tokens. A file edge.

`authority.pem` (0600) holds certificate and key in one file, so that they appear together; `ca.crt` is the bundle
supervisors are given; `join-tokens.json` is the ledger. However many processes start at once, one CA comes out.
Made for one writer host: links and advisory locks must work on the file system.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.pki.authority import ROOT_LIFETIME, Authority
from supervisor_middleware.pki.bundles import parse_bundle
from supervisor_middleware.pki.files import (
    Mode,
    create_file,
    locked,
    make_directory,
    permissions,
    read_file,
    replace_file,
)
from supervisor_middleware.pki.secret import SecretBytes
from supervisor_middleware.pki.tokens import JoinTokens

AUTHORITY_FILE: Final = "authority.pem"
BUNDLE_FILE: Final = "ca.crt"
TOKENS_FILE: Final = "join-tokens.json"

_KEY_BEGINS: Final = b"-----BEGIN PRIVATE KEY-----"
_ANYBODY: Final = 0o007


def load_or_create_authority(
    directory: Path, *, trust_domain: str, now: datetime, lifetime: timedelta = ROOT_LIFETIME
) -> Authority:
    """The CA kept in `directory`; a new one only where there never was one.

    Raises:
        InvalidInput: a file is corrupt, of another trust domain, expired or open to anybody; or the CA is missing
            although its bundle was published (a new CA would lock every supervisor out). Names the file.
        Unavailable: the disk fails.
    """
    make_directory(directory)
    path = directory / AUTHORITY_FILE
    # In this order: whoever publishes has stored the CA before, so a bundle that is seen means a CA that is there.
    published = read_file(directory / BUNDLE_FILE)
    content = read_file(path)
    if content is None:
        if published is not None:
            raise InvalidInput(
                f"{path}: the CA is missing, but {directory / BUNDLE_FILE} was published: restore it from a backup "
                f"(or remove {BUNDLE_FILE} to begin anew; every supervisor must then enrol again)"
            )
        created = Authority.create(trust_domain=trust_domain, now=now, lifetime=lifetime)
        create_file(path, created.certificate_pem + created.private_key_pem.reveal(), mode=Mode.PRIVATE)
        content = read_file(path)
    authority = _authority(path, content or b"", trust_domain=trust_domain, now=now)
    _publish(directory / BUNDLE_FILE, authority)
    return authority


@contextmanager
def join_tokens(directory: Path) -> Iterator[JoinTokens]:
    """The ledger in `directory`, locked; saved when the block ends without an error, so before anybody profits.

    Raises:
        InvalidInput: the ledger is corrupt; names the file.
        Unavailable: the disk fails.
    """
    make_directory(directory)
    path = directory / TOKENS_FILE
    with locked(directory):
        ledger = _tokens(path)
        before = ledger.to_dict()
        yield ledger
        if (after := ledger.to_dict()) != before:
            replace_file(path, json.dumps(after, indent=1).encode(), mode=Mode.PRIVATE)


def _authority(path: Path, content: bytes, *, trust_domain: str, now: datetime) -> Authority:
    if permissions(path) & _ANYBODY:
        raise InvalidInput(f"{path}: anybody can read or write the CA's key: chmod 600 it, and consider a new CA")
    certificate, begin, key = content.partition(_KEY_BEGINS)
    try:
        return Authority.load(certificate, SecretBytes(begin + key), trust_domain=trust_domain, now=now)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def _publish(path: Path, authority: Authority) -> None:
    create_file(path, authority.certificate_pem, mode=Mode.PUBLIC)
    try:
        roots = parse_bundle(read_file(path) or b"")
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    if authority.certificate not in roots:
        raise InvalidInput(f"{path}: the CA in {AUTHORITY_FILE} is not in it: they are of two installations")


def _tokens(path: Path) -> JoinTokens:
    content = read_file(path)
    if content is None:
        return JoinTokens()
    try:
        return JoinTokens.from_dict(json.loads(content))
    except (InvalidInput, ValueError) as error:
        raise InvalidInput(f"{path}: {error}") from None

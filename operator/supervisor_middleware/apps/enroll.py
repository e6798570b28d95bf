"""`smw enroll`: a sandbox's certificate in files, for supervisors that read files, and whoever stands beside them.

As an init container it ends once the files are good; as a sidecar it stays and renews them. The files are
`tls.crt`, `tls.key` (0600) and `ca.crt`, replaced as one (`pki.credential_files`).
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from typing import Final

import structlog

from supervisor_middleware.apps.clock import utc_now
from supervisor_middleware.apps.sandbox_identity import identity_of, trust_of
from supervisor_middleware.audit.events import Event
from supervisor_middleware.audit.sink import JsonLinesSink
from supervisor_middleware.errors import InvalidInput, Unavailable
from supervisor_middleware.pki.files import make_directory
from supervisor_middleware.settings import EnrollSettings
from supervisor_middleware.supervisor.identity import Identity
from supervisor_middleware.supervisor.operator_channel import asked_for
from supervisor_middleware.supervisor.pacing import jittered

OWN_BUNDLE: Final = "..trust.pem"
"""Our copy of the trust bundle, beside the versions of the files."""
_PAUSE: Final = 2.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How long to try, and whether to stay.

    `patience` None tries once. `stays`: never end, renew at half-life; there is no patience to run out then.
    """

    patience: timedelta | None = timedelta(seconds=60)
    stays: bool = False


async def run_enroll(settings: EnrollSettings, manner: Manner, *, tell: Callable[[str], None]) -> None:
    """Have a good certificate in `settings.out`; `tell` is told which. One that is good and young is left alone.

    Raises:
        InvalidInput: a setting or a file is no good; names it.
        Untrusted: the operator refuses, or is not who it must be.
        Unavailable: there is no answer.
    """
    make_directory(settings.out)
    with contextlib.ExitStack() as stack:
        audit = _auditing(settings, stack)
        trust = trust_of(settings, own=settings.out / OWN_BUNDLE, audit=audit)
        identity = identity_of(settings, directory=settings.out, trust=trust, audit=audit)
        identity.load()
        if manner.stays:
            await identity.run()
        identity.follow_trust()
        if identity.is_due():
            await _obtain(identity, manner)
        tell(_outcome(settings, identity))


async def _obtain(identity: Identity, manner: Manner) -> None:
    patience = None if manner.patience is None else manner.patience.total_seconds()
    try:
        async with asyncio.timeout(patience):
            while not await _is_obtained(identity, retries=patience is not None):
                pass
    except TimeoutError:
        _settle(identity, Unavailable("the operator gave no certificate in time; see what was logged before"))
    except Unavailable as error:
        _settle(identity, error)


async def _is_obtained(identity: Identity, *, retries: bool) -> bool:
    try:
        await identity.attempt()
    except Unavailable as error:
        if not retries:
            raise
        _log.warning("no certificate yet; trying again", reason=str(error))
        # Pods that were started together must not come back together.
        pauses = jittered(_PAUSE, random=random.random), asked_for(error, random=random.random)
        await asyncio.sleep(max(pauses))
        return False
    return True


def _settle(identity: Identity, error: Unavailable) -> None:
    """A certificate that should be renewed by now serves for today; nobody says that it was revoked."""
    credentials = identity.credentials.value
    if credentials is None or credentials.expires_at <= utc_now():
        raise error
    _log.warning("not renewed; the certificate that is there is still good", reason=str(error))


def _outcome(settings: EnrollSettings, identity: Identity) -> str:
    credentials = identity.credentials.value
    if credentials is None or not identity.is_saved:
        raise InvalidInput(f"{settings.out}: the files could not be written; see what was logged before")
    return f"{settings.out}: {credentials.spiffe_id}, good until {credentials.expires_at:%Y-%m-%dT%H:%M:%SZ}"


def _auditing(settings: EnrollSettings, stack: contextlib.ExitStack) -> Callable[[Event], None]:
    """To the file that was asked for: standard output is for people here."""
    if settings.audit_file is None:
        return lambda _: None
    sink = JsonLinesSink(
        settings.audit_file,
        product_version=version("supervisor-middleware"),
        device=f"{settings.namespace}/{settings.sandbox}",
        now=utc_now,
    )
    stack.callback(sink.close)
    return sink.emit

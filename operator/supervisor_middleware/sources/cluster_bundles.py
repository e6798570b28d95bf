"""CA bundles that registrations refer to: read live, remembered until the next refresh.

A name is checked before it becomes a path: whoever writes a registration must not choose what else we read.
Absent and unreadable bundles are left out; only an outage before the first answer is an error.
"""

import base64
import binascii
from collections.abc import Iterable
from typing import Final

import structlog

from supervisor_middleware.errors import Unavailable
from supervisor_middleware.model.snapshot import BundleKey
from supervisor_middleware.pki.spiffe import is_label, is_subdomain
from supervisor_middleware.sources.cluster_api import ClusterApi, Forbidden, NotFound, Refused
from supervisor_middleware.sources.cluster_kinds import CONFIG_MAPS, SECRETS, core_path

_log = structlog.get_logger(__name__)

_COLLECTIONS: Final = {"ConfigMap": CONFIG_MAPS, "Secret": SECRETS}


class BundleCache:
    """What was read last, of what was asked for last."""

    def __init__(self, api: ClusterApi) -> None:
        self._api = api
        self._texts: dict[BundleKey, str | None] = {}

    async def read(self, keys: Iterable[BundleKey]) -> dict[BundleKey, str]:
        """The bundles that exist; nobody is asked for one that is remembered.

        Raises:
            Unavailable: one that was never read cannot be read now.
        """
        found: dict[BundleKey, str | None] = {}
        for key in keys:
            if key not in self._texts:
                self._texts[key] = await self._fetch(key)
            found[key] = self._texts[key]
        self._texts = {key: text for key, text in self._texts.items() if key in found}
        return {key: text for key, text in found.items() if text is not None}

    async def refresh(self) -> bool:
        """Read again what is remembered; whether anything differs. An outage changes nothing."""
        is_changed = False
        for key, before in tuple(self._texts.items()):
            try:
                after = await self._fetch(key)
            except (Unavailable, Refused) as error:
                # Nor would the next one be answered, after a timeout each.
                _log.info("a CA bundle could not be read again", bundle=str(key), reason=str(error))
                break
            if after != before and key in self._texts:
                self._texts[key] = after
                is_changed = True
        return is_changed

    async def _fetch(self, key: BundleKey) -> str | None:
        collection = _COLLECTIONS.get(key.kind)
        if collection is None or not is_label(key.namespace) or not is_subdomain(key.name):
            return None
        try:
            body = await self._api.get(core_path(collection, namespace=key.namespace, name=key.name))
        except NotFound:
            return None
        except Forbidden:
            _log.warning("a CA bundle may not be read: grant `get` on it to the operator", bundle=str(key))
            return None
        value = (body.get("data") or {}).get(key.key)
        if value is None:
            return None
        return _decoded(str(value)) if collection == SECRETS else str(value)


def _decoded(text: str) -> str:
    """A Secret's value; what is no text is no PEM either, and is reported as that."""
    try:
        return base64.b64decode(text, validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError):
        return ""

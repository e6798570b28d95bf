"""The Lease in the cluster: a record in, a record out, by compare-and-swap. It decides nothing.

Structurally the election's `LeaseStore`. What others put on the object (labels, annotations) is kept.
"""

import re
from typing import Any, Final

from supervisor_middleware.model.canonical import ParsedJson
from supervisor_middleware.model.lease import Lease
from supervisor_middleware.model.sandbox import GROUP
from supervisor_middleware.sources.cluster_api import ClusterApi, Conflict, NotFound

LEASE: Final = "supervisor-middleware"
EPOCH_ANNOTATION: Final = f"{GROUP}/epoch"

_EPOCH: Final = re.compile(r"[0-9]{1,15}")


class ClusterLease:
    """The one Lease, in the operator's namespace."""

    def __init__(self, api: ClusterApi, *, namespace: str) -> None:
        """`namespace` is the operator's own."""
        self._api, self._namespace = api, namespace
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._seen: ParsedJson | None = None

    async def read(self) -> Lease | None:
        """The record, or None if there is none.

        Raises:
            Unavailable: the API server is, or we may not.
        """
        try:
            self._seen = await self._api.get(f"{self._collection}/{LEASE}")
        except NotFound:
            self._seen = None
            return None
        return _record(self._seen)

    async def write(self, lease: Lease) -> bool:
        """Replace exactly what was seen last, or create it if there was nothing; whether nobody else was faster.

        Raises:
            Unavailable: the API server is, or we may not. It may have been written all the same.
        """
        body = self._body(lease)
        try:
            if self._seen is None:
                self._seen = await self._api.create(self._collection, body)
            else:
                self._seen = await self._api.replace(f"{self._collection}/{LEASE}", body)
        except (Conflict, NotFound):
            return False
        return True

    def _body(self, lease: Lease) -> dict[str, Any]:
        seen = self._seen or {}
        before, spec = seen.get("metadata") or {}, seen.get("spec") or {}
        is_same = _text(spec.get("holderIdentity")) == lease.holder
        metadata = {
            "name": LEASE,
            "namespace": self._namespace,
            **{k: before[k] for k in ("labels", "resourceVersion", "uid") if k in before},
            "annotations": {**(before.get("annotations") or {}), EPOCH_ANNOTATION: str(lease.epoch)},
        }
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                # The API server takes no empty one.
                **({"holderIdentity": lease.holder} if lease.holder else {}),
                "leaseDurationSeconds": int(lease.duration),
                "acquireTime": (is_same and spec.get("acquireTime")) or lease.renewed,
                "renewTime": lease.renewed,
                "leaseTransitions": lease.transitions,
            },
        }


def _record(body: ParsedJson) -> Lease:
    """Anybody may have written it: what is not of the right form counts as absent."""
    metadata, spec = body.get("metadata") or {}, body.get("spec") or {}
    epoch = str((metadata.get("annotations") or {}).get(EPOCH_ANNOTATION))
    return Lease(
        holder=_text(spec.get("holderIdentity")),
        renewed=_text(spec.get("renewTime")),
        duration=float(_number(spec.get("leaseDurationSeconds"))),
        transitions=_number(spec.get("leaseTransitions")),
        epoch=int(epoch) if _EPOCH.fullmatch(epoch) else 0,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0

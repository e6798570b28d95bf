"""How much etcd holds. PURE but for its socket, which is the control plane's own."""

import json
from typing import Final

from e2e.controlplane.cluster import ControlPlane
from e2e.controlplane.commands import Layout
from e2e.controlplane.etcd import get, post

_IN_USE: Final = "etcd_mvcc_db_total_size_in_use_in_bytes"


class Etcd:
    """The etcd of one control plane."""

    def __init__(self, plane: ControlPlane) -> None:
        """Nothing is dialled yet."""
        self._socket = Layout(directory=plane.directory).etcd_socket

    def bytes_in_use(self) -> float:
        """What is in use of its database, earlier states of objects included."""
        lines = get(self._socket, "/metrics").splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{_IN_USE} "))

    def compacted_bytes(self) -> float:
        """The same with the latest state of each object only."""
        header = json.loads(post(self._socket, "/v3/maintenance/status", {}))["header"]
        post(self._socket, "/v3/kv/compaction", {"revision": header["revision"], "physical": True})
        post(self._socket, "/v3/maintenance/defragment", {})
        return self.bytes_in_use()

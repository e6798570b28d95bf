"""Which cluster is meant where nobody says so: as kubectl finds it."""

import os
from pathlib import Path

from supervisor_middleware.errors import InvalidInput


def default_kubeconfig() -> Path | None:
    """The kubeconfig that kubectl would use; None is the Pod's own.

    Raises:
        InvalidInput: there is none.
    """
    if given := os.environ.get("KUBECONFIG"):
        return Path(given)
    at_home = Path("~/.kube/config").expanduser()
    if at_home.exists():
        return at_home
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise InvalidInput("of what? give --state DIR of smw standalone, or --kubeconfig FILE of a cluster")
    return None

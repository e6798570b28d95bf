"""Objects as people type them, for tests against a real API server: a test names only what matters to it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

GROUP: Final = "middleware.openshell.io"
API_VERSION: Final = f"{GROUP}/v1alpha1"
SANDBOX_LABEL: Final = f"{GROUP}/sandbox"

Document = dict[str, Any]


def an_entry(
    middleware: str = "openshell/regex",
    *,
    order: int | None = None,
    config: Mapping[str, Any] | None = None,
    include: Sequence[str] = ("**.example.com",),
    **more: Any,
) -> Document:
    """One middleware config; redaction by the built-in unless said otherwise."""
    optional = {"order": order, "config": None if config is None else dict(config)}
    return {
        "middleware": middleware,
        "endpoints": {"include": list(include)},
        **{k: v for k, v in optional.items() if v is not None},
        **more,
    }


def a_policy(
    name: str, *, namespace: str, selector: Mapping[str, str] | None = None, **entries: Document
) -> Document:
    """A `SandboxPolicy` with these entries by key (`_` stands for `-`), or with one that redacts."""
    given = {key.replace("_", "-"): entry for key, entry in entries.items()} or {"redact": an_entry()}
    return {
        "apiVersion": API_VERSION,
        "kind": "SandboxPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "sandboxSelector": {} if selector is None else {"matchLabels": dict(selector)},
            "networkMiddlewares": given,
        },
    }


def a_baseline(name: str, *, selector: Mapping[str, str], **entries: Document) -> Document:
    """A `ClusterSandboxPolicy` for namespaces with these labels, its entries as in `a_policy`."""
    given = {key.replace("_", "-"): entry for key, entry in entries.items()} or {"redact": an_entry()}
    return {
        "apiVersion": API_VERSION,
        "kind": "ClusterSandboxPolicy",
        "metadata": {"name": name},
        "spec": {"namespaceSelector": {"matchLabels": dict(selector)}, "networkMiddlewares": given},
    }


def skipping(document: Mapping[str, Any], host: str) -> Document:
    """A copy of a policy with a `tls: skip` endpoint."""
    endpoints = {"endpoints": [{"host": host, "port": 5432, "tls": "skip"}]}
    return changed(document, "spec.networkPolicies", {"database": endpoints})


def a_registration(name: str, *, endpoint: str = "https://redactor.acme.svc:8443", **spec: Any) -> Document:
    """A `SupervisorMiddleware`."""
    insecure = {"allowInsecure": True} if endpoint.startswith("http://") else {}
    return {
        "apiVersion": API_VERSION,
        "kind": "SupervisorMiddleware",
        "metadata": {"name": name},
        "spec": {"grpcEndpoint": endpoint, "maxBodyBytes": 65536, **insecure, **spec},
    }


def changed(document: Mapping[str, Any], path: str, value: Any) -> Document:
    """A copy with one field set; `path` is dotted, and None removes."""
    first, _, rest = path.partition(".")
    copy = dict(document)
    if rest:
        copy[first] = changed(copy.get(first, {}), rest, value)
    elif value is None:
        copy.pop(first, None)
    else:
        copy[first] = value
    return copy

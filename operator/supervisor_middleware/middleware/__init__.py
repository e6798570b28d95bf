"""The middleware SDK: subclass `Middleware`, implement `evaluate`, `serve` it. See `docs/sdk.md`.

Everything an author needs is importable from here; `conformance` is the suite to test a service with, `builtins`
and `terms` are the services this product brings. No protobuf and nothing of the control plane shows.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from supervisor_middleware.middleware.service import (
    Caller,
    Middleware,
    called_by,
    current_caller,
    http_binding,
    http_manifest,
)
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.evaluation import (
    Decision,
    Evaluation,
    ExistingHeader,
    FailureCode,
    Finding,
    Header,
    RemoveHeader,
    Result,
    StageFailed,
    WriteHeader,
)
from supervisor_middleware.model.manifest import Dialect, Manifest

if TYPE_CHECKING:
    from supervisor_middleware.middleware.process import run
    from supervisor_middleware.middleware.server import Server, serve
    from supervisor_middleware.middleware.tls import (
        ServerTls,
        TlsFiles,
        any_caller,
        chosen,
        identified,
        is_operator,
        members_of,
        sandbox_of,
    )
else:
    # gRPC and what belongs to it take a fifth of a second: only who serves pays for them, not `smw validate`.
    _ON_USE = {
        "run": "process",
        **dict.fromkeys(("Server", "serve"), "server"),
        **dict.fromkeys(("ServerTls", "TlsFiles"), "tls"),
        **dict.fromkeys(("any_caller", "chosen", "identified", "is_operator", "members_of", "sandbox_of"), "tls"),
    }

    def __getattr__(name: str) -> object:
        if name not in _ON_USE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_ON_USE[name]}"), name)


__all__ = [
    "Caller",
    "Decision",
    "Dialect",
    "Evaluation",
    "ExistingHeader",
    "FailureCode",
    "Finding",
    "Header",
    "JsonObject",
    "Manifest",
    "Middleware",
    "RemoveHeader",
    "Result",
    "Server",
    "ServerTls",
    "StageFailed",
    "TlsFiles",
    "WriteHeader",
    "any_caller",
    "called_by",
    "chosen",
    "current_caller",
    "http_binding",
    "http_manifest",
    "identified",
    "is_operator",
    "members_of",
    "run",
    "sandbox_of",
    "serve",
]

"""What an author writes: a `Middleware` with a manifest, a config check and an evaluation. No network, no protobuf.

RFC 0009 "The middleware contract": a middleware inspects and returns a decision, optional replacement content,
findings and metadata; it never makes the upstream call. The same object runs in-process (a built-in) or behind
`serve` (an operator-run service).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.evaluation import Evaluation, Result
from supervisor_middleware.model.limits import MAX_BODY_BYTES
from supervisor_middleware.model.manifest import Binding, Dialect, Manifest, Operation, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls, proven by its client certificate; no SPIFFE ID over plaintext and in-process."""

    spiffe_id: str | None = None


_caller: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039 - frozen, shared safely


def current_caller() -> Caller:
    """The caller of the call being answered; ask inside `validate_config` or `evaluate`."""
    return _caller.get()


@contextmanager
def called_by(caller: Caller) -> Iterator[None]:
    """Make `caller` the current one: for the server, and for an author's tests."""
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)


class Middleware(ABC):
    """One service: subclass it, set `manifest`, implement `evaluate`, and hand an instance to `serve`.

    One instance answers many sandboxes concurrently, so it keeps nothing of a request. Raise `StageFailed`, or let
    any exception out, when there is no answer: the policy's `onError` decides then.
    """

    manifest: Manifest

    async def validate_config(self, binding: str, config: JsonObject) -> str | None:
        """Why `binding` cannot take `config`, or None where it can.

        Free of side effects: policies under review are asked about and may never be stored. Name the key that is
        wrong, never its value: the reason is shown to whoever submitted the policy. By default no key is known.
        """
        del binding
        return "takes no config" if config else None

    @abstractmethod
    async def evaluate(self, evaluation: Evaluation) -> Result:
        """The answer to one request. The same `request_id` gives the same answer: a caller may have to ask again."""


def http_binding(binding_id: str, *, max_body_bytes: int = MAX_BODY_BYTES, timeout: str = "") -> Binding:
    """A hook on HTTP requests before credentials: the one pair of RFC 0009 version 1.

    Args:
        binding_id: what policies name, `acme/redactor`; stable for ever.
        max_body_bytes: the largest body taken and returned, at most 4 MiB.
        timeout: advertised, `500ms` or `2s`; empty leaves it to the registration.
    """
    return Binding(
        id=binding_id,
        operation=Operation.HTTP_REQUEST,
        phase=Phase.PRE_CREDENTIALS,
        max_body_bytes=max_body_bytes,
        timeout=timeout,
    )


def http_manifest(*bindings: Binding, name: str, version: str, dialect: Dialect = Dialect.RFC0009) -> Manifest:
    """A manifest of `bindings`; `name` and `version` are for people only."""
    return Manifest(name=name, service_version=version, dialect=dialect, bindings=bindings)

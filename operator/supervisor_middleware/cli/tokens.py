"""`smw token`: join tokens of a standalone control plane, from its state directory: create one, end a sandbox's."""

import secrets
from pathlib import Path

from supervisor_middleware.apps.clock import utc_now
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.durations import parse_deadline
from supervisor_middleware.pki.store import join_tokens


def create(sandbox: str, *, state: Path, lifetime: str) -> str:
    """A new token for `namespace/name`.

    Raises:
        InvalidInput: the name, the lifetime or the state directory is no good.
    """
    namespace, name = _sandbox(sandbox)
    _require_state(state)
    try:
        valid_for = parse_deadline(lifetime)
    except ValueError as error:
        raise InvalidInput(f"--lifetime {error}") from None
    with join_tokens(state) as tokens:
        return tokens.issue(namespace, name, now=utc_now(), lifetime=valid_for, secret=secrets.token_bytes(32))


def revoke(sandbox: str, *, state: Path) -> int:
    """End every token and every join of `namespace/name`; how many there were.

    Raises:
        InvalidInput: the name or the state directory is no good.
    """
    namespace, name = _sandbox(sandbox)
    _require_state(state)
    with join_tokens(state) as tokens:
        return tokens.revoke(namespace, name, utc_now())


def _sandbox(text: str) -> tuple[str, str]:
    namespace, _, name = text.partition("/")
    if not namespace or not name:
        raise InvalidInput("a sandbox is named NAMESPACE/NAME, for example quickstart/agent")
    return namespace, name


def _require_state(state: Path) -> None:
    if not state.is_dir():
        raise InvalidInput(f"{state}: no standalone control plane keeps its state here; start smw standalone first")

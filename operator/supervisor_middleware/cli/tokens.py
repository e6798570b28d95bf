"""`smw token create`: one join token for one sandbox, from the state directory of a standalone control plane."""

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
    namespace, _, name = sandbox.partition("/")
    if not namespace or not name:
        raise InvalidInput("a sandbox is named NAMESPACE/NAME, for example quickstart/agent")
    if not state.is_dir():
        raise InvalidInput(f"{state}: no standalone control plane keeps its state here; start smw standalone first")
    try:
        valid_for = parse_deadline(lifetime)
    except ValueError as error:
        raise InvalidInput(f"--lifetime {error}") from None
    with join_tokens(state) as tokens:
        return tokens.issue(namespace, name, now=utc_now(), lifetime=valid_for, secret=secrets.token_bytes(32))

"""A reviewer that knows a few tokens, and can be away."""

from collections.abc import Callable, Mapping

from supervisor_middleware.errors import Unavailable, Untrusted
from supervisor_middleware.pki.spiffe import SandboxIdentity


class FakeReviewer:
    def __init__(self, tokens: Mapping[str, SandboxIdentity]) -> None:
        self.tokens = dict(tokens)
        self.is_away = False
        self.error: Exception | None = None
        self.gone = set[SandboxIdentity]()

    async def review(self, token: str, *, holder: Callable[[], str]) -> SandboxIdentity:
        del holder
        if self.error is not None:
            raise self.error
        if self.is_away:
            raise Unavailable("the API server is away")
        if token not in self.tokens:
            raise Untrusted("no such token")
        return self.tokens[token]

    async def vouch(self, identity: SandboxIdentity) -> None:
        if self.error is not None:
            raise self.error
        if self.is_away:
            raise Unavailable("the API server is away")
        if identity in self.gone:
            raise Untrusted("no such Pod")

"""Bytes that are not what a peer had to send. The text is the platform's own words, never the peer's."""

from supervisor_middleware.errors import Untrusted


class Undecodable(Untrusted):
    """A message that breaks the contract. `problem` is a clause of its own ("the manifest has no bindings")."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class ManifestUndecodable(Undecodable):
    """`Describe` answered with something that is no manifest."""


class VerdictUndecodable(Undecodable):
    """`ValidateConfig` answered with something that is no verdict."""


class RequestUndecodable(Undecodable):
    """A client sent a server something that is no request of the server's dialect."""

"""Errors by whose move it is. PURE; every error this product raises on purpose has one of these roots.

Foreign exceptions are translated where they enter, with `raise ... from error`. A message names the file,
field or peer and what to do next; it never holds a secret, a private key or a request's content.
"""


class SupervisorMiddlewareError(Exception):
    """Any error of ours: catch this at a boundary, and one of its four kinds to act on it."""


class InvalidInput(SupervisorMiddlewareError):  # noqa: N818 - named for whose move it is
    """The author's move: the same input fails again until somebody changes it."""


class Unavailable(SupervisorMiddlewareError):  # noqa: N818 - named for whose move it is
    """The caller's move: nothing is wrong with the input, trying again later may succeed."""


class Untrusted(SupervisorMiddlewareError):  # noqa: N818 - named for whose move it is
    """The peer (or the material it left) is not what it must be: refuse; a retry does not help."""


class Bug(SupervisorMiddlewareError):  # noqa: N818 - named for whose move it is
    """Our move: a state that the rules of the code exclude."""

"""What a test needs and this machine has not: a loud skip on a desk, a failure in CI."""

import os
from typing import NoReturn

import pytest


def absent(reason: str) -> NoReturn:
    """End the test; nothing passes in CI because it was not run."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)

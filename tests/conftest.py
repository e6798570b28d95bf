"""Options shared by all tests."""

import os

import pytest
from hypothesis import HealthCheck, settings

# As `smw` itself: gRPC's core writes to stderr when it likes.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# A busy machine is slow, not wrong.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden", action="store_true", help="write tests/golden/**/*.out.* anew; review the diff"
    )

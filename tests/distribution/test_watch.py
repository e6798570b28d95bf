"""How long a stream lasts, without a wire."""

from datetime import UTC, datetime, timedelta

import pytest

from supervisor_middleware.distribution.attendance import Leaf
from supervisor_middleware.distribution.discovery import Discovery
from supervisor_middleware.distribution.watch import Patience, Watch

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
HOUR = 3600.0


@pytest.mark.parametrize(
    ("draw", "certificate_ends", "seconds"),
    [
        (0.0, timedelta(hours=24), 0.75 * HOUR),
        (0.5, timedelta(hours=24), 0.875 * HOUR),
        (0.999_999, timedelta(hours=24), HOUR),
        (0.5, timedelta(minutes=10), 600.0),
        (0.5, timedelta(minutes=-10), 0.0),
    ],
)
async def test_streams_that_began_together_do_not_end_together_and_none_outlives_its_certificate(
    draw: float, certificate_ends: timedelta, seconds: float
) -> None:
    discovery = Discovery(epoch=1, trust_bundle=bytes, changed=lambda: None, now=lambda: NOW)
    watch = Watch(discovery, trust_domain="example.test", now=lambda: NOW, random=lambda: draw, patience=Patience())
    leaf = Leaf(serial=1, begins_at=NOW, expires_at=NOW + certificate_ends, issuer="")
    assert watch._lifetime(leaf).rest == pytest.approx(seconds, rel=1e-5)

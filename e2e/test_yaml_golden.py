"""The recorded answers are kubectl's own, so `tests/sources/test_documents.py` compares us with the real thing."""

import json
from pathlib import Path

import pytest

from e2e.controlplane.build import Binaries
from e2e.yaml_golden import cases, kubectl_reads, recorded


@pytest.mark.parametrize("case", cases(), ids=lambda path: path.name)
def test_kubectl_reads_what_was_recorded(binaries: Binaries, case: Path) -> None:
    assert kubectl_reads(binaries.kubectl, case) == json.loads(recorded(case).read_text(encoding="utf-8"))

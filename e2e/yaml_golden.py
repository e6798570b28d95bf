"""What the real kubectl reads from the files in `tests/golden/yaml`. Records with `python -m e2e.yaml_golden`.

`kubectl label --local` needs no server: it reads a file as every kubectl command does, sets a label that is there
already, and prints the objects as JSON.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from e2e.controlplane.build import ensure

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "golden" / "yaml"


def cases() -> list[Path]:
    """The files to read, each with its `.out.json` beside it."""
    return sorted(FOLDER.glob("*.in.*"))


def recorded(case: Path) -> Path:
    """Where the answer to `case` is kept."""
    return case.with_name(case.name.split(".", 1)[0] + ".out.json")


def kubectl_reads(kubectl: Path, case: Path) -> list[Any]:
    """The objects kubectl makes of a file."""
    command = [
        str(kubectl),
        "label",
        "--local",
        "--overwrite",
        "--output=json",
        f"--filename={case}",
        "recorded=kubectl",
    ]
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HOME": home, "KUBECONFIG": f"{home}/none"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    decoder, text, objects = json.JSONDecoder(), done.stdout.strip(), []
    while text:
        value, end = decoder.raw_decode(text)
        objects.append(value)
        text = text[end:].lstrip()
    return objects


def main() -> None:
    """Record every case."""
    kubectl = ensure().kubectl
    for case in cases():
        answer = json.dumps(kubectl_reads(kubectl, case), indent=1, sort_keys=True, ensure_ascii=False)
        recorded(case).write_text(answer + "\n", encoding="utf-8")
        sys.stdout.write(f"{recorded(case).name}\n")


if __name__ == "__main__":
    main()

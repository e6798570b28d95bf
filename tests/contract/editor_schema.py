"""`docs/reference/schema.json`, what `smw schema` prints: for editors that read it from the repository."""

import json
from pathlib import Path
from typing import Final

from supervisor_middleware.cli.editor_schema import schema_for

SCHEMA: Final = Path("docs/reference/schema.json")


def editor_schema() -> dict[Path, bytes]:
    """The file by its path."""
    return {SCHEMA: (json.dumps(schema_for(None), indent=2) + "\n").encode()}

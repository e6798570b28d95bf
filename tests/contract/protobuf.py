"""The generator of `wire/gen`: message classes, service stubs and their type stubs, out of `wire/proto`.

Reads the `.proto` files only; the tools' versions are pinned in requirements, so the same sources give the same bytes.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[2]
_PROTO: Final = Path("operator/supervisor_middleware/wire/proto")
_GEN: Final = Path("operator/supervisor_middleware/wire/gen")
# protoc reads the sources under the path their code will be imported by. So the generated imports are right as they
# are, and no two files of this process share a name in protobuf's pool.
_IMPORT_PATH: Final = "supervisor_middleware/wire/gen"
# released.proto is called by explicit paths and has no service.
_WITH_SERVICES: Final = frozenset({"distribution.proto", "inspection.proto", "openshell_middleware_v1.proto"})
_PACKAGE_DOC: Final = b'"""Generated from wire/proto by `make generate`; not edited by hand."""\n'


def protobuf_code() -> dict[Path, bytes]:
    """Every file of `wire/gen`.

    Raises:
        RuntimeError: a `.proto` file does not compile; the message is protoc's.
    """
    sources = sorted(path.name for path in (_ROOT / _PROTO).glob("*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        _protoc(sources=sources, outputs=("python", "mypy"), into=scratch)
        with_services = [name for name in sources if name in _WITH_SERVICES]
        _protoc(sources=with_services, outputs=("grpc_python", "mypy_grpc"), into=scratch)
        made = {_GEN / path.name: path.read_bytes() for path in (Path(scratch) / _IMPORT_PATH).iterdir()}
    return {_GEN / "__init__.py": _PACKAGE_DOC, **made}


def _protoc(*, sources: list[str], outputs: tuple[str, ...], into: str) -> None:
    tools = Path(sys.executable).parent
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc"),
        f"--proto_path={_IMPORT_PATH}={_ROOT / _PROTO}",
        *(f"--plugin=protoc-gen-{name}={tools / f'protoc-gen-{name}'}" for name in ("mypy", "mypy_grpc")),
        *(f"--{output}_out={into}" for output in outputs),
        *(f"{_IMPORT_PATH}/{source}" for source in sources),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)

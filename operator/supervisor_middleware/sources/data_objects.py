"""ConfigMaps and Secrets in a folder, for `caBundleRef`. PURE, and of a Secret it keeps nothing but certificates."""

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any, Final

BUNDLE_KINDS: Final = frozenset({"ConfigMap", "Secret"})
UNFIT: Final = ""
"""Stands for a value that is no bundle: a reference to it is refused, and what it held is not kept."""


def bundles_of(kind: str, body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each key with its PEM bundle, or `UNFIT`; as the API server would have it (`stringData` wins over `data`)."""
    plain, encoded = ("stringData", "data") if kind == "Secret" else ("data", "binaryData")
    values = {key: _decoded(text) for key, text in _strings(body.get(encoded))} | dict(_strings(body.get(plain)))
    for key, text in values.items():
        yield key, text if "BEGIN CERTIFICATE" in text and "PRIVATE KEY" not in text else UNFIT


def _strings(value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        yield from ((k, v) for k, v in value.items() if isinstance(v, str))


def _decoded(text: str) -> str:
    try:
        return base64.b64decode("".join(text.split()), validate=True).decode()
    except (binascii.Error, ValueError):
        return UNFIT

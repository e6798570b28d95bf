"""Inputs nobody wrote: seeds from the examples and goldens, changed at random but reproducibly."""

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
MAX_BYTES: Final = 256 * 1024

_TOKENS: Final = (
    *(
        b"&a ",
        b"*a",
        b"<<: *a\n",
        b"<<: ",
        b"- ",
        b"? ",
        b": ",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b"|\n",
        b">-\n  ",
        b"#",
    ),
    *(
        b"---\n",
        b"...\n",
        b"\n",
        b"  ",
        b"\t",
        b"'",
        b'"',
        b"\\u",
        b"\\ud800",
        b"%YAML 1.1\n",
        b"!!int ",
        b"!!binary ",
        b"!x ",
    ),
    *(
        b"\x00",
        b"\xff",
        b"\xfe\xff",
        b"\xef\xbb\xbf",
        b"\x7f",
        b"\x1b[31m",
        b"\r",
        b"\xf0\x9f\x98\x80",
        b"\xe2\x80\xa8",
    ),
    *(b"~", b"y", b".nan", b"1e999", b"0x", b"-0", b"1:30", b"18446744073709551616", b"9007199254740993", b"1e-400"),
    *(
        b"{a: 1}",
        b"[[[[",
        b"{{{{",
        b"a: &a [*a]\n",
        b'{"a":1}',
        b"kind: List\nitems: []\n",
        b"kind: Sandbox\n",
        b"**.",
        b"$\x7b",
    ),
)
_SCALARS: Final[tuple[Any, ...]] = (
    *(
        None,
        True,
        0,
        -1,
        1,
        2**31,
        2**53 + 1,
        2**63,
        2**70,
        1.5,
        1e300,
        -0.0,
        "",
        " ",
        "x" * 300,
        "\ud800",
        "\x1b[31m",
    ),
    *(
        "**",
        "*",
        "a.**.b",
        "*.example.com",
        "xn--",
        "256.1.1.1",
        "1h",
        "10ms",
        "-1s",
        "In",
        "NotIn",
        "FailOpen",
        "skip",
    ),
    *(
        "openshell/regex",
        "openshell/none",
        "acme/terms",
        "https://a",
        "http://[::1]:99999",
        "{}",
        "\u2028",
        "default",
    ),
    *([], {}, [None], [[]], {"": None}, {"a": {"b": [1]}}, ["x"] * 40, {str(i): i for i in range(70)}),
)
BOMBS: Final = (
    b"a: &a [1,1,1,1,1,1,1,1,1]\n"
    + b"".join(b"%c: &%c [%s]\n" % (n, n, b",".join([b"*%c" % (n - 1)] * 9)) for n in range(ord("b"), ord("k"))),
    b"[" * 5000,
    b"{a: " * 5000,
    b"- " * 5000,
    b"? " * 3000,
    b'{"a":' * 5000,
    b"a: " + b"9" * 20_000,
    b"---\n" * 5000,
    b"a: 1\n" * 5000,
    b"".join(b"k%d: v\n" % i for i in range(5000)),
)
"""Hostile by construction."""


def text_seeds() -> tuple[bytes, ...]:
    """Every YAML and JSON file of the examples and the goldens."""
    found = (p for folder in ("examples", "tests/golden") for p in sorted((ROOT / folder).rglob("*")))
    return tuple(p.read_bytes() for p in found if p.suffix in {".yaml", ".json"} and p.is_file())


def objects(seeds: Sequence[bytes]) -> tuple[Any, ...]:
    """What in `seeds` is an object with a kind, or a recorded manifest, as plain values."""
    found = (inner for seed in seeds for document in _documents(seed) for inner in _collections(document))
    return tuple(o for o in found if isinstance(o, dict) and not o.keys().isdisjoint({"kind", "registration"}))


def mutated(seed: bytes, *, other: bytes, chance: random.Random) -> bytes:
    """`seed` with a few of its bytes changed, moved, repeated or crossed with those of `other`."""
    data = seed
    for _ in range(chance.randrange(1, 8)):
        data = chance.choice(_MUTATIONS)(data, other, chance)[:MAX_BYTES]
    return data


def reshaped(value: Any, *, other: Any, chance: random.Random) -> bytes:
    """An object with a few of its fields replaced, removed, doubled or taken from `other`: well-formed text again."""
    changed = copy.deepcopy(value)
    for _ in range(chance.randrange(1, 5)):
        _change(changed, other, chance)
    if chance.random() < 0.5:
        return json.dumps(changed).encode()
    text: str = yaml.safe_dump(changed, sort_keys=False, allow_unicode=True)
    return text.encode("utf-8", "surrogatepass")


def _documents(seed: bytes) -> Iterator[Any]:
    try:
        for document in yaml.load_all(seed.decode(), Loader=yaml.CSafeLoader):
            yield json.loads(json.dumps(document, default=str, skipkeys=True))  # without dates, which JSON has not
    except (yaml.YAMLError, UnicodeDecodeError, ValueError):
        return


def _change(root: Any, other: Any, chance: random.Random) -> None:
    holder = chance.choice(list(_collections(root)))
    if not holder:
        return
    places: list[Any] = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    place = chance.choice(places)
    match chance.randrange(4):
        case 0:
            del holder[place]
        case 1:
            holder[place] = copy.deepcopy(chance.choice(list(_collections(other))))
        case 2 if isinstance(holder, dict):
            holder[chance.choice(["order", "config", "a.b", "", "\u00e9", "k" * 300, f"{place}x"])] = holder[place]
        case _:
            holder[place] = copy.deepcopy(chance.choice(_SCALARS))


def _collections(root: Any) -> Iterator[Any]:
    pending = [root]
    while pending:
        item = pending.pop()
        if isinstance(item, dict | list):
            yield item
            pending.extend(item.values() if isinstance(item, dict) else item)


def _insert(data: bytes, _other: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(_TOKENS) + data[at:]


def _remove(data: bytes, _other: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + data[at + chance.randrange(1, 40) :]


def _flip(data: bytes, _other: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]


def _repeat(data: bytes, _other: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    end = at + chance.randrange(1, 80)
    return data[:at] + data[at:end] * (1 << chance.randrange(1, 10)) + data[end:]


def _cross(data: bytes, other: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]


def _swap_lines(data: bytes, _other: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if lines:
        moved = lines.pop(chance.randrange(len(lines)))
        lines.insert(chance.randrange(len(lines) + 1), chance.choice((moved, b"  " + moved, moved.lstrip())))
    return b"".join(lines)


_MUTATIONS: Final[tuple[Callable[[bytes, bytes, random.Random], bytes], ...]] = (
    _insert,
    _insert,
    _remove,
    _flip,
    _repeat,
    _cross,
    _swap_lines,
)

"""YAML as kubectl reads it, and nothing that is read may crash or stall us."""

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor_middleware.model.violation import Reason
from supervisor_middleware.sources.documents import MAX_DOCUMENTS, MAX_FILE_BYTES, lines_of, read_documents
from supervisor_middleware.sources.scalars import integer
from supervisor_middleware.sources.yaml_values import MAX_DEPTH

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "yaml"
MIB = 1024 * 1024


def values(text: str | bytes) -> list[Any]:
    parsed = read_documents(text.encode() if isinstance(text, str) else text)
    assert parsed.problems == ()
    return [d.value for d in parsed.documents]


def problems(text: str | bytes) -> list[tuple[int, str]]:
    parsed = read_documents(text.encode() if isinstance(text, str) else text)
    return [(p.line, p.message) for p in parsed.problems]


# -------------------------------------------------------------------------------------------------- like kubectl


@pytest.mark.parametrize("case", sorted(GOLDEN.glob("*.in.*")), ids=lambda path: path.name)
def test_documents_are_what_kubectl_reads(case: Path) -> None:
    recorded = case.with_name(case.name.split(".", 1)[0] + ".out.json").read_text(encoding="utf-8")
    expected = json.loads(recorded, parse_int=lambda digits: integer(int(digits)))
    assert values(case.read_bytes()) == expected


def test_types_are_those_of_json_in_kubernetes() -> None:
    (value,) = values("[1e3, 1.0, 1.5, 9223372036854775807, 9223372036854775808, 1e21, 0b-101]")
    assert [type(v) for v in value] == [int, int, float, int, float, float, int]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("\n\n# only a comment\n", []),
        ("---\n---\n---\n", []),
        ("null\n---\n~\n", []),
        ("\ufeffa: 1\n", [{"a": 1}]),
        ("a: 1\n---\nb: 2", [{"a": 1}, {"b": 2}]),
        ('{"a": 1}{"b": 2}\n', [{"a": 1}, {"b": 2}]),
        ('{"a": 1}\n---\nb: y\n', [{"a": 1}, {"b": True}]),
        ("{a: y}\n---\nb: 2\n", [{"a": True}, {"b": 2}]),
    ],
)
def test_streams_are_cut_where_kubectl_cuts(text: str, expected: list[Any]) -> None:
    assert values(text) == expected


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_names_the_encoding(encoding: str) -> None:
    assert values("a: é\n".encode(encoding)) == [{"a": "é"}]


# ------------------------------------------------------------------------------------------------------ stricter


def test_a_key_that_is_there_twice_is_a_problem_with_line_and_path() -> None:
    (problem,) = read_documents(b"spec:\n  redact:\n    order: 1\n    on: x\n    order: 2\n").problems
    assert (problem.line, problem.path) == (5, "spec.redact.order")
    assert "twice" in problem.message


def test_keys_that_become_equal_in_json_are_the_same_key() -> None:
    assert problems("{1: a, '1': b}") == [(1, "the key 1 is there twice; kubectl would drop one of them")]
    assert len(problems('{"a": {"b": 1, "b": 2}}')) == 1


def test_long_words_mean_what_short_ones_do() -> None:
    zeros = "0" * 70
    assert values(f"{{{zeros}7: {zeros}8.5, {'k' * 70}: {'v' * 70}}}") == [{"7": 8.5, "k" * 70: "v" * 70}]


def test_a_merged_key_may_be_overridden() -> None:
    assert values("a: &a {x: 1}\nb: {<<: *a, x: 2}\n") == [{"a": {"x": 1}, "b": {"x": 2}}]


def test_a_merge_hides_no_key_that_was_written_twice() -> None:
    twice = [(2, "the key x is there twice; kubectl would drop one of them")]
    assert problems("a: &a {x: 1}\nb: {x: 1, <<: *a, x: 2}\n") == twice
    assert problems("a: &a {x: 1}\nb: {<<: *a, x: 1, x: 2}\n") == twice


@pytest.mark.parametrize(
    "text", ["a: !!python/object:os.system x", "a: !foo b", "a: !<tag:x> {b: 1}", "a: !!set {b}", "a: !!int x"]
)
def test_tags_are_refused(text: str) -> None:
    assert len(problems(text)) == 1


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\n\tb: 2\n", 2, "tab character"),
        ("a: b: c\n", 1, "mapping values are not allowed"),
        ("a: 1\n--- b: 2\n", 2, "line that begins with ---"),
        ("a: 1\n...\nb: 2\n", 3, "expected <document start>"),
        ("a: *b\n", 1, "alias"),
        ("a: &a [*a]\n", 1, "contains itself"),
        ("? {a: 1}\n: b\n", 1, "key must be a string"),
        ("~: 1\n", 1, "cannot be a key"),
        ("a: .nan\n", 1, "NaN"),
        ("<<: 1\n", 1, "merges only mappings"),
        ("a: 1\n\0", 2, "NUL"),
        (b"a: 1\nb: \xff\n", 2, "UTF-8"),
        (b"\x7fELF\x02\x01\x01\x00\x00", 1, "NUL"),
        (b"\x89PNG\r\n\x1a\n\x00", 1, "UTF-8"),
        ("a: \x07\n", 1, "control characters"),
        ('{"a": 1e999}', 1, "beyond a double"),
    ],
)
def test_what_cannot_be_read_is_one_problem_on_its_line(text: str | bytes, line: int, words: str) -> None:
    ((found, message),) = problems(text)
    assert found == line
    assert words in message


def test_a_problem_never_repeats_the_file() -> None:
    (problem,) = read_documents(b"password: hunter2: x\n").problems
    assert "hunter2" not in f"{problem}"


def test_a_broken_document_does_not_hide_the_others() -> None:
    parsed = read_documents(b"a: 1\n---\nb: [\n---\nc: 3\n---\nd: 1\nd: 2\n")
    assert [d.value for d in parsed.documents] == [{"a": 1}, {"c": 3}]
    assert [p.line for p in parsed.problems] == [3, 8] or [p.line for p in parsed.problems] == [4, 8]


# -------------------------------------------------------------------------------------------------------- bounds


def test_a_billion_laughs_are_not_laughed() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 40)]
    ((_, message),) = problems("\n".join(lines))
    assert "aliases" in message


def test_long_values_are_not_multiplied_without_end() -> None:
    ((_, message),) = problems(f"a: &a {'x' * MIB}\nb: [{', '.join(['*a'] * 50)}]\n")
    assert "aliases" in message


@pytest.mark.parametrize("text", ["[" * 5000, "- " * 5000, '{"a":' * 5000 + "1" + "}" * 5000, "{a: " * 500])
def test_nesting_is_bounded(text: str) -> None:
    assert len(problems(text)) == 1


def test_nesting_below_the_bound_is_fine() -> None:
    assert problems("[" * MAX_DEPTH + "]" * MAX_DEPTH) == []
    assert [p.reason for p in read_documents(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)).problems] == [
        Reason.TOO_LARGE
    ]


def test_the_limit_of_a_file_is_named() -> None:
    (problem,) = read_documents(b" " * (MAX_FILE_BYTES + 1)).problems
    assert problem.reason is Reason.TOO_LARGE
    assert str(MAX_FILE_BYTES) in problem.message


def test_the_number_of_documents_is_bounded() -> None:
    parsed = read_documents(b"{}" * (MAX_DOCUMENTS + 10))
    assert [p.reason for p in parsed.problems] == [Reason.TOO_MANY]


@pytest.mark.parametrize(
    "content",
    [
        b"[" * MIB,
        b"- " * MIB,
        b"? " * MIB,
        b"&a " * MIB,
        b"---\n" * MIB,
        b'"' + b"a" * MIB,
        b"a: " + b"9" * MIB,
        b"a: " + b"9_" * MIB,
        b"{}" + b" " * MIB + b"x",
        (b"{}" + b" " * 100) * 10_000,
        b"{" + b'"a":1,' * 200_000 + b'"a":1}',
        b"{" + b"a: 1," * 50_000 + b"}",
        b'{"a":' * MIB,
    ],
    ids=lambda content: content[:8].decode(),
)
def test_hostile_text_ends_soon(content: bytes) -> None:
    began = time.monotonic()
    read_documents(content)
    assert time.monotonic() - began < 20


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_documents_or_problems(content: bytes) -> None:
    read_documents(content)


@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                *"ab:-[]{},&*?!|>\"'#%@`~\t\r\n\ufeff\x85\ud7ff10.e ",
                *("<<", "0x", "\\u", "---", "...", "!!int ", "\n  ", ": ", "- ", "&a ", "*a", "\n---\n", '{"a":1}'),
                '"\\ud800"',
            ]
        ),
        max_size=30,
    ).map("".join)
)
def test_arbitrary_yaml_is_documents_or_problems(text: str) -> None:
    parsed = read_documents(text.encode())
    for document in parsed.documents:
        # What is read is JSON: finite, with string keys, printable as UTF-8.
        assert json.loads(json.dumps(document.value, allow_nan=False, ensure_ascii=False).encode()) == document.value
        lines_of(text.encode(), document)


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_json_is_read_as_it_is(value: Any) -> None:
    parsed = read_documents(json.dumps({"value": value}).encode())
    assert [d.value for d in parsed.documents] == [{"value": value}]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_keeps_its_value(number: float) -> None:
    (value,) = values(f"a: {number!r}\n")
    assert math.isclose(value["a"], number, rel_tol=0, abs_tol=0)


# --------------------------------------------------------------------------------------------------------- lines


def test_fields_are_found_by_line() -> None:
    content = b"# first\na: 1\n---\nspec:\n  x:\n  - 1\n  - w: 2\n    z: [3,\n      4]\n"
    _, document = read_documents(content).documents
    assert document.line == 4
    assert lines_of(content, document) == {
        "": 4,
        "spec": 5,
        "spec.x": 6,
        "spec.x[0]": 6,
        "spec.x[1]": 7,
        "spec.x[1].w": 7,
        "spec.x[1].z": 8,
        "spec.x[1].z[0]": 8,
        "spec.x[1].z[1]": 9,
    }

"""Revisions: packed, unpacked, read back, and whatever else a store may hold."""

import base64
import json
import zlib
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.model.canonical import digest, parse
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.limits import MAX_OBJECT_BYTES
from supervisor_middleware.model.revision import Revision, Unresolved, pack, revision_from_content, unpack
from tests.builders import a_revision, an_entry

REVISION = a_revision(
    an_entry(
        "first", order=-5, config={"n": 1e20, "deep": [{"a": None}]}, exclude=["x.example.com"], verdict="sha256:1"
    ),
    an_entry("second", order=7, on_error=OnError.FAIL_OPEN, include=["**", "api.test"]),
    labels={"tier": "dev"},
    activation_deadline=timedelta(minutes=2),
)


def read_back(revision: Revision, content: Any) -> Revision:
    return revision_from_content(
        content,
        policy=revision.policy,
        uid=revision.uid,
        generation=revision.generation,
        created_at=revision.created_at,
    )


@pytest.mark.parametrize("revision", [REVISION, a_revision()], ids=["full", "small"])
def test_a_revision_comes_back_from_its_packed_content(revision: Revision) -> None:
    packed = pack(revision.content())
    found = read_back(revision, parse(unpack(packed, expected_digest=revision.digest)))
    assert found.content() == revision.content()
    assert found.digest == revision.digest
    assert found.entries == revision.entries
    assert found.selector == revision.selector
    assert found.activation_deadline == revision.activation_deadline


@given(st.binary(max_size=2000))
def test_what_is_packed_is_unpacked(content: bytes) -> None:
    assert unpack(pack(content), expected_digest=digest(content)) == content


def test_equal_specs_have_equal_digests_whatever_their_generation() -> None:
    assert a_revision(generation=1, uid="a").digest == a_revision(generation=9, uid="b").digest
    assert a_revision(labels={"a": "b"}).digest != a_revision().digest


@given(st.text() | st.binary().map(lambda data: base64.b64encode(data).decode()))
def test_unpacking_anything_else_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpack(text, expected_digest=digest(b"something else"))


def test_a_wrong_digest_is_refused() -> None:
    with pytest.raises(ValueError, match="digest"):
        unpack(pack(b"{}"), expected_digest=digest(b"{ }"))


def test_cut_off_content_is_refused() -> None:
    content = REVISION.content()
    cut = base64.b64encode(zlib.compress(content)[:-10]).decode()
    with pytest.raises(ValueError, match="digest"):
        unpack(cut, expected_digest=digest(content))


def test_a_bomb_is_not_inflated() -> None:
    bomb = b"0" * (MAX_OBJECT_BYTES * 20)
    with pytest.raises(ValueError, match="digest"):
        unpack(pack(bomb), expected_digest=digest(bomb))


def test_an_unknown_schema_is_refused() -> None:
    content = json.loads(REVISION.content())
    with pytest.raises(ValueError, match="schemaVersion"):
        read_back(REVISION, {**content, "schemaVersion": 2})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_hostile_content_raises_only_what_is_promised(data: st.DataObject) -> None:
    content = json.loads(REVISION.content())
    target: Any = data.draw(st.sampled_from([content, content["entries"][0], content["selector"][0]]))
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(json_values)
    try:
        read_back(REVISION, content)
    except (KeyError, TypeError, ValueError, OverflowError):
        return


def test_a_revision_is_unresolved_entry_by_entry() -> None:
    unresolved = REVISION.as_unresolved(Unresolved.CONFLICTED)
    assert [e.unresolved for e in unresolved.entries] == [Unresolved.CONFLICTED] * 2
    assert [e.key for e in unresolved.entries] == ["first", "second"]

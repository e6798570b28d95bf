"""Secrets do not show themselves, whatever is done to what holds them."""

import copy
import pickle
import traceback
from dataclasses import asdict, dataclass

import pytest

from supervisor_middleware.pki.secret import SecretBytes

SECRET = SecretBytes(b"hunter2")


@dataclass(frozen=True)
class Holder:
    secret: SecretBytes


def refuse(secret: SecretBytes) -> None:
    raise LookupError(secret)


def test_no_way_of_showing_a_secret_shows_it() -> None:
    shown = f"{SECRET} {SECRET!r} {SECRET:} {Holder(SECRET)} {[SECRET]} {asdict(Holder(SECRET))}"
    assert "hunter2" not in shown
    assert "redacted" in shown


def test_a_secret_is_revealed_only_on_purpose() -> None:
    assert SECRET.reveal() == b"hunter2"


def test_a_traceback_with_a_secret_in_it_does_not_show_it() -> None:
    with pytest.raises(LookupError) as caught:
        refuse(SECRET)
    lines = traceback.TracebackException.from_exception(caught.value, capture_locals=True).format()
    assert "hunter2" not in "".join(lines)


def test_secrets_are_compared_by_content() -> None:
    assert SecretBytes(b"hunter2") == SECRET
    assert SecretBytes(b"hunter3") != SECRET
    assert SECRET != b"hunter2"


def test_a_secret_is_not_hashable_not_mutable_and_not_pickled() -> None:
    with pytest.raises(TypeError):
        hash(SECRET)
    with pytest.raises(AttributeError):
        SECRET._content = b""
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(SECRET)


def test_a_secret_may_be_copied_in_memory() -> None:
    assert copy.deepcopy(SECRET) is SECRET

"""What differs between what was accepted of a service and what it offers now, in words and in IDs."""

from dataclasses import replace
from typing import Any

import pytest

from supervisor_middleware.compiler.claims import neighbours_of
from supervisor_middleware.compiler.registration import accept_registration, draft_registration
from supervisor_middleware.control.drift import Drift, drift_of
from supervisor_middleware.model.manifest import Dialect, Manifest, Operation
from supervisor_middleware.model.verdict import Described
from tests.builders import a_binding, a_manifest, a_registration, an_accepted_registration, some_settings

LOST = "the service no longer offers what was accepted: "
TWO = a_manifest(a_binding(), a_binding("acme/other", timeout="200ms"))


def drift(offered: Manifest, *, accepted: Manifest = TWO, **spec: Any) -> Drift:
    committed = an_accepted_registration(manifest=accepted)
    draft, _ = draft_registration(a_registration(**spec), bundles={}, settings=some_settings())
    _, found = accept_registration(draft, Described(offered), others=[committed])
    neighbours = neighbours_of(draft, others=[committed])
    return drift_of(draft, offered, found, committed=committed, neighbours=neighbours)


def test_what_is_as_it_was_has_not_drifted() -> None:
    assert drift(TWO) == Drift()
    assert not drift(replace(TWO, name="another", service_version="2.0.0"))


def test_a_lower_limit_is_said_in_numbers_and_concerns_that_binding_alone() -> None:
    offered = a_manifest(a_binding(max_body_bytes=1024), a_binding("acme/other", timeout="200ms"))
    found = drift(offered)
    assert found == Drift(
        text=f"{LOST}binding acme/redactor takes 1024 body bytes, not 4194304",
        offered=offered.digest,
        lost=frozenset({"acme/redactor"}),
    )


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        (a_binding("acme/other", max_body_bytes=1, timeout="1s"), "takes 1 body bytes, not 4194304 and has a timeout of 1s, not a timeout of 200ms"),
        (a_binding("acme/other", max_body_bytes=1), "takes 1 body bytes, not 4194304 and has no timeout, not a timeout of 200ms"),
        (a_binding("acme/other", timeout="\x1bcanary"), "has a timeout that is none, not a timeout of 200ms"),
        (replace(a_binding("acme/other", timeout="200ms"), operation=Operation.WEBSOCKET_MESSAGE), "is for another hook"),
    ],
)  # fmt: skip
def test_what_changed_of_a_binding_is_said_and_nothing_that_a_service_wrote(binding: object, words: str) -> None:
    offered = replace(TWO, bindings=(TWO.bindings[0], binding))  # type: ignore[arg-type]
    found = drift(offered)
    assert found.text == f"{LOST}binding acme/other {words}"
    assert "canary" not in found.text


def test_a_limit_that_is_still_enough_is_no_loss() -> None:
    offered = a_manifest(a_binding(max_body_bytes=65536), a_binding("acme/other", max_body_bytes=1, timeout="200ms"))
    found = drift(offered)
    assert "acme/redactor takes 65536 body bytes" in found.text
    assert found.lost == {"acme/other"}


def test_a_registration_that_asks_for_more_than_there_ever_was_degrades_nobody() -> None:
    small = a_manifest(a_binding(max_body_bytes=65536), a_binding("acme/other", max_body_bytes=65536))
    assert drift(small, accepted=small, maxBodyBytes=2 * 65536) == Drift()
    grown = a_manifest(a_binding(max_body_bytes=65537), a_binding("acme/other", max_body_bytes=65536))
    found = drift(grown, accepted=small, maxBodyBytes=2 * 65536)
    assert (found.lost, bool(found)) == (frozenset(), True)


def test_one_that_is_listed_twice_is_said() -> None:
    offered = replace(TWO, bindings=(*TWO.bindings, TWO.bindings[0]))
    found = drift(offered)
    assert found.text == f"{LOST}binding acme/redactor is offered 2 times, not 1"
    # No limit is lower, but nothing of such a manifest is trusted.
    assert found.lost == {"acme/redactor", "acme/other"}


def test_many_changes_are_not_all_named() -> None:
    many = a_manifest(*(a_binding(f"acme/b{n}") for n in range(8)))
    found = drift(a_manifest(a_binding("acme/else")), accepted=many)
    assert found.text == LOST + ", ".join(f"binding acme/b{n} is gone" for n in range(5)) + ", and 3 more"
    assert len(found.lost) == 8


def test_a_service_that_claims_what_is_built_in_loses_trust_for_all_its_bindings() -> None:
    found = drift(a_manifest(*TWO.bindings, a_binding("openshell/regex")))
    assert found.text.startswith("the service describes itself in a way that cannot be accepted")
    assert found.lost == {"acme/redactor", "acme/other"}


def test_another_dialect_is_said_of_every_binding() -> None:
    broken = a_manifest(a_binding("acme", max_body_bytes=1), dialect=Dialect.RELEASED)
    found = drift(broken, accepted=a_manifest(a_binding("acme")))
    assert found.text == f"{LOST}binding acme is of another dialect"
    assert found.lost == {"acme"}


def test_more_than_was_accepted_degrades_nobody() -> None:
    found = drift(a_manifest(*TWO.bindings, a_binding("acme/new")))
    assert "also offers acme/new" in found.text
    assert found.lost == frozenset()
    assert found.offered != TWO.digest


@pytest.mark.parametrize("spec", [{"grpcEndpoint": "https://elsewhere.svc"}, {"registrationName": "renamed"}])
def test_a_registration_that_points_elsewhere_has_not_drifted(spec: dict[str, Any]) -> None:
    assert drift(a_manifest(a_binding(max_body_bytes=1), a_binding("acme/other")), **spec) == Drift()


def test_what_was_never_accepted_cannot_drift() -> None:
    draft, _ = draft_registration(a_registration(), bundles={}, settings=some_settings())
    broken = a_manifest(a_binding(max_body_bytes=1))
    _, found = accept_registration(draft, Described(broken), others=[])
    neighbours = neighbours_of(draft, others=[])
    assert drift_of(draft, broken, found, committed=None, neighbours=neighbours) == Drift()

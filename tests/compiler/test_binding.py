"""Who serves a binding, and what changes when registrations do."""

from datetime import timedelta

from supervisor_middleware.compiler.binding import bind
from tests.builders import NOW, REGEX, a_binding, a_builtin, a_manifest, an_accepted_registration


def test_a_change_names_the_bindings_that_are_served_otherwise() -> None:
    acme = an_accepted_registration(manifest=a_manifest(a_binding("acme/a"), a_binding("acme/b")))
    before = bind([acme], [a_builtin()])
    assert bind([acme], [a_builtin()]).changed_since(before) == frozenset()
    assert bind([], [a_builtin()]).changed_since(before) == {"acme/a", "acme/b"}
    smaller = an_accepted_registration(manifest=acme.manifest, max_body_bytes=10)
    assert bind([smaller], [a_builtin()]).changed_since(before) == {"acme/a", "acme/b"}
    other = an_accepted_registration(
        "other", created_at=NOW + timedelta(days=1), manifest=a_manifest(a_binding("other/a"))
    )
    assert bind([acme, other], ()).changed_since(before) == {"other/a", REGEX}


def test_names_that_look_alike_are_found() -> None:
    bindings = bind([an_accepted_registration()], [a_builtin()])
    assert bindings.close_to("acme/redacter") == ("acme/redactor",)
    assert bindings.close_to("nothing-like-it") == ()

"""What runs where, offline: every sandbox that is known, and where none is, one for each selector."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from supervisor_middleware.cli.offline.scopes import Scope, chosen_scopes, listed, scopes_of, shown_labels
from supervisor_middleware.compiler.binding import bind
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.middleware.builtins import BUILTIN_BINDINGS
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.sandbox import NAMESPACE_LABEL, Sandbox
from supervisor_middleware.model.selectors import Operator, Requirement, Selector
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.model.violation import Subject
from tests.builders import NAMESPACE, a_revision, a_sandbox, an_entry

KNOWN = {NAMESPACE: {NAMESPACE_LABEL: NAMESPACE}}


def scopes(
    *revisions: Revision, sandboxes: Sequence[Sandbox] = (), namespaces: Mapping[str, Mapping[str, str]] = KNOWN
) -> tuple[Scope, ...]:
    settings = CompilerSettings(builtins=BUILTIN_BINDINGS)
    bindings = bind((), BUILTIN_BINDINGS)
    return scopes_of(sandboxes, revisions, namespaces=namespaces, bindings=bindings, settings=settings)


def shown(found: Sequence[Scope]) -> list[tuple[str, str, int]]:
    return [(s.title, shown_labels(s.sandbox.labels), len(s.generation.stages)) for s in found]


def a_baseline(name: str = "guard", labels: Mapping[str, str] | None = None) -> Revision:
    return replace(a_revision(name=name, labels=labels), policy=Subject(kind="ClusterSandboxPolicy", name=name))


def test_policies_of_one_selector_share_an_assumed_sandbox() -> None:
    pair = [a_revision(an_entry(n, order=o), name=n, labels={"app": "x"}) for o, n in enumerate("ab")]
    everyone = a_revision(an_entry("c", order=9), name="c")
    assert shown(scopes(*pair, everyone)) == [
        ("any sandbox of team-a that policies a and b select", "app=x", 3),
        ("any sandbox of team-a that policy c selects", "", 1),
    ]


def test_where_sandboxes_are_known_none_is_assumed() -> None:
    coder = a_sandbox("coder", labels={"app": "x"})
    (found,) = scopes(a_revision(labels={"app": "y"}), sandboxes=(coder,))
    assert (found.title, found.is_assumed, found.policies, found.generation.stages) == ("team-a/coder", False, (), ())


def test_a_namespace_without_policies_has_one_assumed_sandbox() -> None:
    assert shown(scopes()) == [("any sandbox of team-a", "", 0)]
    assert shown(scopes(a_baseline())) == [("any sandbox of team-a", "", 1)]


def test_a_selector_that_no_labels_satisfy_has_none() -> None:
    never = Selector(
        requirements=(
            Requirement(key="a", operator=Operator.EXISTS),
            Requirement(key="a", operator=Operator.DOES_NOT_EXIST),
        )
    )
    assert scopes(replace(a_revision(), selector=never)) == ()
    nowhere = replace(a_baseline(), selector=never)
    assert shown(scopes(nowhere)) == [("any sandbox of team-a", "", 0)]


def test_a_baseline_that_selects_no_known_namespace_has_an_assumed_one() -> None:
    title = "any sandbox of a namespace that baseline guard selects"
    assert (title, "", 1) in shown(scopes(a_baseline(labels={"tier": "prod"})))
    named = scopes(a_baseline(labels={NAMESPACE_LABEL: "vault"}), namespaces={})
    assert [(s.title, s.sandbox.namespace) for s in named] == [(title, "vault")]


def test_sandboxes_of_equal_policies_share_a_generation() -> None:
    first, second = scopes(a_revision(), sandboxes=(a_sandbox("a"), a_sandbox("b")))
    assert first.generation is second.generation
    assert first.policies == second.policies == (a_revision().policy,)


def test_scopes_are_asked_for_by_name_title_or_namespace() -> None:
    found = scopes(a_revision(), sandboxes=(a_sandbox("a"), a_sandbox("b")))
    assert chosen_scopes(found, "") == chosen_scopes(found, "team-a") == found
    assert chosen_scopes(found, "team-a/b") == found[1:]
    with pytest.raises(InvalidInput, match="c: no such sandbox; there is team-a/a, team-a/b"):
        chosen_scopes(found, "c")
    with pytest.raises(InvalidInput, match="there is no sandbox and no policy"):
        chosen_scopes((), "c")


def test_of_many_sandboxes_only_some_are_listed() -> None:
    found = scopes(sandboxes=[a_sandbox(f"s{i:02}") for i in range(12)])
    assert listed(found).endswith("/s09 and 2 more")

"""Small worlds for hypothesis: few namespaces, sandboxes and policies of both kinds, so that they often meet.

    @given(st.lists(worlds(), min_size=2))
    def test_whatever_came_before(sequence: list[World]) -> None: ...

Two worlds of one sequence share objects by identity wherever they say the same, as a source's snapshots do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from hypothesis import strategies as st

from supervisor_middleware.compiler.binding import Bindings, bind
from supervisor_middleware.compiler.composition import selects
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.revision import Entry, Position, Revision, Skip, Unresolved
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.selectors import Operator, Requirement, Selector
from supervisor_middleware.model.violation import Subject
from tests.builders import NOW, a_binding, a_manifest, a_sandbox, an_accepted_registration, an_entry, some_settings

NAMES = ("team-a", "team-b", "team-c")
KEYS, VALUES = ("app", "tier"), ("x", "y")
BINDINGS: tuple[Bindings, ...] = (
    bind([an_accepted_registration()], some_settings().builtins),
    bind([an_accepted_registration(max_body_bytes=4096)], some_settings().builtins),
    bind([an_accepted_registration(manifest=a_manifest(a_binding("acme/other")))], some_settings().builtins),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything that decides what sandboxes run."""

    sandboxes: tuple[Sandbox, ...]
    revisions: tuple[Revision, ...]
    namespaces: Mapping[str, Mapping[str, str]]
    bindings: Bindings

    def selecting(self, sandbox: Sandbox) -> dict[str, Revision] | None:
        """By brute force: the policies (by UID) that select a sandbox, None if its namespace is unknown."""
        labels = self.namespaces.get(sandbox.namespace)
        if labels is None:
            return None
        return {r.uid: r for r in self.revisions if selects(r, sandbox, namespace_labels=labels)}

    def selected(self, uid: str) -> set[str]:
        """By brute force: the sandboxes that a policy selects."""
        return {s.key for s in self.sandboxes if uid in (self.selecting(s) or {})}


def worlds() -> st.SearchStrategy[World]:
    """One world; equal parts of two are the same objects."""
    return st.builds(
        World,
        sandboxes=st.lists(_SANDBOXES, max_size=5, unique_by=lambda s: s.key).map(tuple),
        revisions=st.lists(_REVISIONS, max_size=5, unique_by=lambda r: r.uid).map(tuple),
        namespaces=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(_LABELS), max_size=3),
        bindings=st.sampled_from(BINDINGS),
    )


_LABELS: tuple[Mapping[str, str], ...] = ({}, {"app": "x"}, {"app": "y"}, {"app": "x", "tier": "y"}, {"tier": "x"})
_SANDBOXES = st.sampled_from(
    tuple(
        a_sandbox(name, namespace=namespace, labels=labels)
        for name in ("one", "two")
        for namespace in NAMES
        for labels in _LABELS
    )
)


def _selector(number: int) -> Selector:
    """One of many, of every operator."""
    first = Requirement(key=KEYS[number % 2], operator=list(Operator)[number % 4], values=_values(number % 4, number))
    second = Requirement(key=KEYS[number // 4 % 2], operator=Operator.IN, values=VALUES[: 1 + number // 8 % 2])
    return Selector(requirements=((), (first,), (first, second))[number % 3])


def _values(operator: int, number: int) -> tuple[str, ...]:
    return VALUES[: 1 + number % 2] if operator < 2 else ()


def _entries(number: int) -> tuple[Entry, ...]:
    """Few keys, orders, bindings and hosts, so that there are conflicts of every sort."""
    return tuple(
        an_entry(
            f"key-{(number + n) % 4}",
            order=(number * 3 + n) % 5,
            binding=("acme/redactor", "acme/other", "openshell/regex")[(number + n) % 3],
            on_error=list(OnError)[number % 2],
            include=("*.a.test", "b.a.test", "**.b.test")[: 1 + number % 3],
        )
        for n in range(1 + number % 4)
    )


def _revision(number: int) -> Revision:
    is_baseline = number % 3 == 0
    kind, namespace = ("ClusterSandboxPolicy", None) if is_baseline else ("SandboxPolicy", NAMES[number % 2])
    name = f"policy-{number % 8}"
    made = Revision(
        policy=Subject(kind=kind, namespace=namespace, name=name),
        uid=f"{kind}-{namespace}-{name}",
        generation=1,
        created_at=NOW + timedelta(days=number % 7),
        selector=_selector(number),
        entries=_entries(number),
        position=list(Position)[number % 2],
        skips=(Skip(path="spec.networkPolicies.db.endpoints[0]", host="c.a.test"),) if number % 5 == 0 else (),
    )
    return made.as_unresolved(Unresolved.NEVER_ACCEPTED) if number % 11 == 0 else made


_REVISIONS = st.sampled_from(tuple(_revision(number) for number in range(96)))

"""Which policies select which sandboxes, kept up to date change by change. PURE.

A change touches the sandboxes it concerns and no others, however many there are: sandboxes and policies are found by
namespace and by a label that a selector asks for. `compiler.composition.selects` is what it must agree with.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from supervisor_middleware.compiler.composition import selects
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.selectors import Operator, Selector

K = TypeVar("K", str, tuple[str, str, str])
Place: TypeAlias = tuple[str, str, str]
"""Namespace, label, value; label and value are empty for "any sandbox of the namespace"."""


@dataclass(slots=True)
class Selection:
    """The relation, with an index on both sides."""

    _sandboxes: dict[str, Sandbox] = field(default_factory=dict)
    _revisions: dict[str, Revision] = field(default_factory=dict)
    _namespaces: dict[str, Mapping[str, str]] = field(default_factory=dict)
    _baselines: dict[str, None] = field(default_factory=dict)
    _sandboxes_at: dict[Place, dict[str, None]] = field(default_factory=dict)
    _revisions_at: dict[Place, tuple[str, ...]] = field(default_factory=dict)
    # Mostly of one: a set for each would take more memory than all else about a policy here.
    _selecting: dict[str, dict[str, None]] = field(default_factory=dict)
    _selected: dict[str, dict[str, None]] = field(default_factory=dict)

    def update(
        self, sandboxes: Iterable[Sandbox], revisions: Iterable[Revision], namespaces: Mapping[str, Mapping[str, str]]
    ) -> set[str]:
        """Make these the world; returns the keys of sandboxes that are concerned, gone ones too.

        What is the same object as before is the same, so nothing else is looked at.
        """
        concerned: set[str] = set()
        for name in [n for n in self._namespaces if n not in namespaces]:
            concerned |= self.set_namespace(name, None)
        for name, labels in namespaces.items():
            known = self._namespaces.get(name)
            if known is not labels and known != labels:
                concerned |= self.set_namespace(name, labels)
        present = {s.key: s for s in sandboxes}
        for key in [k for k in self._sandboxes if k not in present]:
            concerned |= self.remove_sandbox(key)
        for key, sandbox in present.items():
            if self._sandboxes.get(key) is not sandbox:
                concerned |= self.put_sandbox(sandbox)
        wanted = {r.uid: r for r in revisions}
        for uid in [u for u in self._revisions if u not in wanted]:
            concerned |= self.remove_revision(uid)
        for uid, revision in wanted.items():
            if self._revisions.get(uid) is not revision:
                concerned |= self.put_revision(revision)
        return concerned

    def selecting(self, key: str) -> tuple[Revision, ...] | None:
        """The policies that select a sandbox; None if it or its namespace is unknown: a baseline may select it."""
        sandbox = self._sandboxes.get(key)
        if sandbox is None or sandbox.namespace not in self._namespaces:
            return None
        return tuple(self._revisions[uid] for uid in self._selecting.get(key, ()))

    def selected(self, uid: str) -> tuple[str, ...]:
        """The keys of the sandboxes that a policy selects."""
        return tuple(key for key in self._selected.get(uid, ()) if self._is_placed(key))

    def sandbox(self, key: str) -> Sandbox:
        """A sandbox that is selected by its key."""
        return self._sandboxes[key]

    # ------------------------------------------------------------------------------------------------ one change

    def put_sandbox(self, sandbox: Sandbox) -> set[str]:
        """Add or replace a sandbox."""
        self.remove_sandbox(sandbox.key)
        self._sandboxes[sandbox.key] = sandbox
        for place in _places_of(sandbox):
            self._sandboxes_at.setdefault(place, {})[sandbox.key] = None
        found = (uid for place in _places_of(sandbox) for uid in self._revisions_at.get(place, ()))
        self._relate(sandbox.key, [*self._baselines, *found])
        return {sandbox.key}

    def remove_sandbox(self, key: str) -> set[str]:
        """Forget a sandbox."""
        sandbox = self._sandboxes.pop(key, None)
        if sandbox is None:
            return set()
        for place in _places_of(sandbox):
            _discard(self._sandboxes_at, place, key)
        for uid in self._selecting.pop(key, ()):
            _discard(self._selected, uid, key)
        return {key}

    def put_revision(self, revision: Revision) -> set[str]:
        """Add or replace a policy's revision; one of the same selector concerns the same sandboxes."""
        known = self._revisions.get(revision.uid)
        if known is not None and _reach(known) == _reach(revision):
            self._revisions[revision.uid] = revision
            return set(self._selected.get(revision.uid, ()))
        before = self.remove_revision(revision.uid)
        self._revisions[revision.uid] = revision
        if revision.is_baseline:
            self._baselines[revision.uid] = None
            named = (n for n, labels in self._namespaces.items() if revision.selector.selects(labels))
            places: Iterable[Place] = [(name, "", "") for name in named]
        else:
            places = _places_for(revision)
            for place in places:
                self._revisions_at[place] = (*self._revisions_at.get(place, ()), revision.uid)
        for key in [k for place in places for k in self._sandboxes_at.get(place, ())]:
            self._relate(key, (revision.uid,))
        return before | set(self._selected.get(revision.uid, ()))

    def remove_revision(self, uid: str) -> set[str]:
        """Forget a policy."""
        revision = self._revisions.pop(uid, None)
        if revision is None:
            return set()
        self._baselines.pop(uid, None)
        for place in () if revision.is_baseline else _places_for(revision):
            others = tuple(u for u in self._revisions_at.pop(place, ()) if u != uid)
            if others:
                self._revisions_at[place] = others
        keys = self._selected.pop(uid, {})
        for key in keys:
            _discard(self._selecting, key, uid)
        return set(keys)

    def set_namespace(self, name: str, labels: Mapping[str, str] | None) -> set[str]:
        """Learn a namespace's labels, or that it is gone."""
        if labels is None:
            self._namespaces.pop(name, None)
        else:
            self._namespaces[name] = labels
        keys = tuple(self._sandboxes_at.get((name, "", ""), ()))
        for key in keys:
            for uid in self._baselines:
                _discard(self._selecting, key, uid)
                _discard(self._selected, uid, key)
            self._relate(key, self._baselines)
        return set(keys)

    # ---------------------------------------------------------------------------------------------------- inside

    def _relate(self, key: str, uids: Iterable[str]) -> None:
        sandbox = self._sandboxes[key]
        labels = self._namespaces.get(sandbox.namespace)
        for uid in tuple(uids):
            revision = self._revisions[uid]
            if revision.is_baseline and labels is None:
                continue
            if selects(revision, sandbox, namespace_labels=labels or {}):
                self._selecting.setdefault(key, {})[uid] = None
                self._selected.setdefault(uid, {})[key] = None

    def _is_placed(self, key: str) -> bool:
        return self._sandboxes[key].namespace in self._namespaces


def _places_of(sandbox: Sandbox) -> Iterator[Place]:
    yield sandbox.namespace, "", ""
    for label, value in sandbox.labels.items():
        yield sandbox.namespace, label, value


def _places_for(revision: Revision) -> tuple[Place, ...]:
    """Where every sandbox that it may select is found: under the values of one label it asks for, if there is one."""
    namespace = revision.policy.namespace or ""
    asked = [r for r in revision.selector.requirements if r.operator is Operator.IN]
    if not asked:
        return ((namespace, "", ""),)
    narrowest = min(asked, key=lambda r: (len(r.values), r.key))
    return tuple((namespace, narrowest.key, value) for value in narrowest.values)


def _reach(revision: Revision) -> tuple[str | None, Selector]:
    """All by which it selects; None is the namespace of a baseline."""
    return revision.policy.namespace, revision.selector


def _discard(index: dict[K, dict[str, None]], at: K, item: str) -> None:
    """Take `item` out, and leave no empty entry behind."""
    members = index.get(at, {})
    members.pop(item, None)
    if not members:
        index.pop(at, None)

"""What we know of the cluster, in memory. PURE: events and lists in, tuples out; it asks nobody.

Events and lists reach us in any order, so an object's `resourceVersion` decides: what is older than what we know is
ignored, and what a list does not hold is forgotten only if the list is newer. A UID that is gone never comes back.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.canonical import ParsedJson
from supervisor_middleware.model.snapshot import Kind, Stored, StoredRevision
from supervisor_middleware.sources.cluster_objects import ObjectIdentity, Value, convert, identity_of

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    identity: ObjectIdentity
    value: Value | None


@dataclass(slots=True)
class _Objects:
    """All objects of one kind."""

    by_key: dict[Key, _Entry] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    values: tuple[Any, ...] | None = None


class ClusterView:
    """Objects by kind and place. `report` hears of objects that cannot be used, once each."""

    def __init__(self, *, report: Callable[[Kind, str, str], None]) -> None:
        self._kinds = {kind: _Objects() for kind in Kind}
        self._report = report
        self._policies: tuple[object, object, tuple[Stored, ...]] = (None, None, ())
        self._labels: tuple[object, Mapping[str, Mapping[str, str]]] = (None, {})

    def admit(self, kind: Kind, body: ParsedJson) -> bool:
        """Take in a state of an object; whether anything that counts changed."""
        identity = identity_of(body)
        objects = self._kinds[kind]
        before = objects.by_key.get(identity.key)
        if identity.uid in objects.gone or (before is not None and _is_known(before.identity, identity)):
            return False
        after = _Entry(identity=identity, value=self._value(kind, body, before=before))
        objects.by_key[identity.key] = after
        return self._changed(objects, before=before, after=after)

    def remove(self, kind: Kind, identity: ObjectIdentity) -> bool:
        """Take in a deletion; whether anything that counts changed."""
        objects = self._kinds[kind]
        objects.gone[identity.uid] = max(identity.version, objects.gone.get(identity.uid, 0))
        before = objects.by_key.get(identity.key)
        if before is None or before.identity.uid != identity.uid:
            return False
        del objects.by_key[identity.key]
        return self._changed(objects, before=before, after=None)

    def newest_unseen(self, kind: Kind, listed: Collection[ObjectIdentity]) -> int:
        """Version of the newest listed state that we do not know yet; 0 if we know them all."""
        objects = self._kinds[kind]
        unseen = (
            max(i.version, 1)
            for i in listed
            if i.uid not in objects.gone
            and ((entry := objects.by_key.get(i.key)) is None or not _is_known(entry.identity, i))
        )
        return max(unseen, default=0)

    def prune(self, kind: Kind, listed: Collection[ObjectIdentity], *, version: int) -> tuple[str, ...]:
        """Forget what a list of `version` no longer holds; returns the names of those ghosts."""
        objects = self._kinds[kind]
        uids = {i.uid for i in listed}
        objects.gone = {uid: at for uid, at in objects.gone.items() if at > version}
        ghosts = [
            e.identity
            for e in objects.by_key.values()
            if e.identity.uid not in uids and e.identity.version <= version
        ]
        for ghost in ghosts:
            self.remove(kind, replace(ghost, version=version))
        return tuple(sorted("/".join(filter(None, ghost.key)) for ghost in ghosts))

    def values(self, kind: Kind) -> tuple[Any, ...]:
        """Everything that counts, sorted by namespace and name."""
        objects = self._kinds[kind]
        if objects.values is None:
            entries = (objects.by_key[key] for key in sorted(objects.by_key))
            objects.values = tuple(e.value for e in entries if e.value is not None)
        return objects.values

    def policies(self) -> tuple[Stored, ...]:
        """Policies of both kinds; the same tuple while none changed."""
        tenants, baselines = self.values(Kind.SANDBOX_POLICY), self.values(Kind.CLUSTER_SANDBOX_POLICY)
        if self._policies[0] is not tenants or self._policies[1] is not baselines:
            self._policies = (tenants, baselines, (*tenants, *baselines))
        return self._policies[2]

    def namespaces(self) -> Mapping[str, Mapping[str, str]]:
        """Labels of namespaces by name; the same mappings while none changed."""
        values = self.values(Kind.NAMESPACE)
        if self._labels[0] is not values:
            self._labels = (values, {n.name: n.labels for n in values})
        return self._labels[1]

    def unusable(self, kind: Kind) -> int:
        """How many objects are there and count for nothing."""
        return sum(e.value is None for e in self._kinds[kind].by_key.values())

    def _value(self, kind: Kind, body: ParsedJson, *, before: _Entry | None) -> Value | None:
        if before is not None and before.identity.uid == body["metadata"]["uid"] and _is_immutable(before.value):
            # Its spec cannot change, and unpacking it is the dear part.
            return before.value
        try:
            value = convert(kind, body)
        except InvalidInput as error:
            self._report(kind, str(body["metadata"]["name"]), str(error))
            return None
        # The same object while it says the same: whoever looks for changes need not compare.
        return before.value if before is not None and before.value == value else value

    @staticmethod
    def _changed(objects: _Objects, *, before: _Entry | None, after: _Entry | None) -> bool:
        old, new = before.value if before else None, after.value if after else None
        if old == new:
            return False
        objects.values = None
        return True


def _is_known(known: ObjectIdentity, seen: ObjectIdentity) -> bool:
    """Whether `seen` is no news: this state or an earlier one, perhaps of a predecessor of the same name."""
    return 0 < seen.version <= known.version


def _is_immutable(value: Value | None) -> bool:
    return isinstance(value, StoredRevision)

"""One world out of the contents of many files. PURE: who owns an object, who it is, what it refers to."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final
from uuid import UUID, uuid5

from supervisor_middleware.compiler.registration import reference_of
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.sandbox import NAMESPACE_LABEL
from supervisor_middleware.model.snapshot import BundleKey, Kind, Stored
from supervisor_middleware.model.violation import Advice, Reason, Report, Subject, Violation, report
from supervisor_middleware.sources.memory import Identity, identify
from supervisor_middleware.sources.objects import Contents, Item, SandboxItem
from supervisor_middleware.sources.places import Place
from supervisor_middleware.sources.problems import Problem

FILE: Final = "File"
"""Kind of the subject of what is wrong with a file itself; its name is the path."""

_IDENTITIES: Final = UUID("5e2fd1a8-3b0c-5b5e-9d0e-2f6c1a4b7d90")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Every object once, with the file that gives it."""

    items: Mapping[Subject, tuple[str, Item]] = field(default_factory=dict)
    sandboxes: Mapping[Subject, tuple[str, SandboxItem]] = field(default_factory=dict)
    violations: tuple[Violation, ...] = ()

    @property
    def places(self) -> dict[Subject, tuple[str, Place]]:
        """Which file gives an object, and where in it."""
        of_items = {subject: (name, item.place) for subject, (name, item) in self.items.items()}
        return of_items | {subject: (name, item.place) for subject, (name, item) in self.sandboxes.items()}


def choose(files: Mapping[str, Contents], *, owners: Mapping[Subject, tuple[str, Place]]) -> Chosen:
    """Of two files that define one object, the one that did before stands (`owners`), else the first by name."""
    candidates: dict[Subject, list[tuple[str, Item | SandboxItem]]] = {}
    for name in sorted(files):
        both: tuple[Item | SandboxItem, ...] = (*files[name].items, *files[name].sandboxes)
        for found in both:
            candidates.setdefault(found.subject, []).append((name, found))
    items: dict[Subject, tuple[str, Item]] = {}
    sandboxes: dict[Subject, tuple[str, SandboxItem]] = {}
    for subject, claims in candidates.items():
        owner = owners[subject][0] if subject in owners else None
        name, found = next((c for c in claims if c[0] == owner), claims[0])
        if isinstance(found, Item):
            items[subject] = (name, found)
        else:
            sandboxes[subject] = (name, found)
    doubtful = (_twice(subject, claims) for subject, claims in candidates.items() if len(claims) > 1)
    return Chosen(items=items, sandboxes=sandboxes, violations=tuple(doubtful))


def objects_of(
    chosen: Chosen,
    *,
    identities: Mapping[str, Identity],
    statuses: Mapping[str, JsonObject],
    now: datetime,
) -> tuple[tuple[Stored, ...], dict[str, Identity]]:
    """Registrations and policies as a store would hold them, and what is known of their identities now."""
    items = [item for _, (_, item) in sorted(chosen.items.items())]
    used = Counter(i.uid for i in items)
    uids = [i.uid if i.uid and used[i.uid] == 1 else _uid_of(i.subject) for i in items]
    known = identify(zip(uids, items, strict=True), identities, now=now)
    stored = tuple(
        Stored(
            subject=item.subject,
            uid=uid,
            generation=known[uid].generation,
            created_at=known[uid].created_at,
            # What is not an object is kept for the compiler, which says so.
            spec=item.spec,  # type: ignore[arg-type]
            status=statuses.get(uid, {}),
            annotations=item.annotations,
        )
        for uid, item in zip(uids, items, strict=True)
    )
    return stored, known


def bundles_of(files: Iterable[Contents], registrations: Iterable[Stored]) -> tuple[dict[BundleKey, str], int]:
    """The CA bundles that are referred to, and how many ConfigMaps and Secrets nobody refers to."""
    contents = tuple(files)
    wanted = {key for r in registrations if (key := reference_of(r)) is not None}
    bundles = {key: pem for c in contents for key, pem in c.bundles.items() if key in wanted}
    used = {(key.kind, key.namespace, key.name) for key in wanted}
    return bundles, len({d for c in contents for d in c.data} - used)


def namespaces_of(files: Iterable[Contents], named: Iterable[str | None]) -> dict[str, Mapping[str, str]]:
    """The labels of every namespace that is described or `named`; each has its own name as one of them."""
    described = {name: labels for c in files for name, labels in c.namespaces.items()}
    names = sorted({*described, *(n for n in named if n)})
    return {name: {**described.get(name, {}), NAMESPACE_LABEL: name} for name in names}


def kept(contents: Contents, before: Contents | None) -> Contents:
    """What a file gives while something in it cannot be read: what can be, and everything else it gave before.

    Last-known-good is per object: one broken document must not look like the deletion of it, nor stop its neighbours.
    """
    if before is None:
        return contents
    now = {i.subject for i in contents.items} | {s.subject for s in contents.sandboxes}
    return replace(
        contents,
        items=(*contents.items, *(i for i in before.items if i.subject not in now)),
        sandboxes=(*contents.sandboxes, *(s for s in before.sandboxes if s.subject not in now)),
        bundles={**before.bundles, **contents.bundles},
        namespaces={**before.namespaces, **contents.namespaces},
        data=before.data | contents.data,
    )


def findings_of(name: str, *, problems: Iterable[Problem], advice: Iterable[Problem]) -> Report:
    """What is wrong with a file, as violations about it."""
    return report(
        (about_file(name, at(p), p.message, hint=p.hint, reason=p.reason) for p in problems),
        (Advice(subject=Subject(kind=FILE, name=name), path=at(p), message=p.message) for p in advice),
    )


def about_file(name: str, path: str, message: str, *, hint: str = "", reason: Reason = Reason.MALFORMED) -> Violation:
    """A violation whose subject is a file; `path` is a line, or empty for the whole of it."""
    return Violation(subject=Subject(kind=FILE, name=name), path=path, reason=reason, message=message, hint=hint)


def at(problem: Problem) -> str:
    """`line 12`, or `line 12, spec.order` where the field is known."""
    return f"line {problem.line}, {problem.path}" if problem.path else f"line {problem.line}"


def by_kind(stored: Iterable[Stored], *kinds: Kind) -> tuple[Stored, ...]:
    """Those of some kinds."""
    return tuple(s for s in stored if s.subject.kind in kinds)


def _twice(subject: Subject, claims: list[tuple[str, Item | SandboxItem]]) -> Violation:
    places = ", ".join(f"{name}:{found.place.line}" for name, found in claims[:5])
    return Violation(
        subject=subject,
        path="",
        reason=Reason.DUPLICATE_NAME,
        message=f"is defined {len(claims)} times: {places}",
        hint="keep one, or rename the others",
    )


def _uid_of(subject: Subject) -> str:
    return str(uuid5(_IDENTITIES, f"{subject.kind}/{subject.namespace or ''}/{subject.name}"))

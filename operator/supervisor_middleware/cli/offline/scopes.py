"""What runs where, offline: the generation of every sandbox that is known, or that has to be assumed. PURE.

In a namespace without `kind: Sandbox` documents there is one assumed sandbox for each selector of its policies, with
as few labels as satisfy it; for a baseline that selects no known namespace, one in an assumed namespace.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from supervisor_middleware.compiler.binding import Bindings
from supervisor_middleware.compiler.composition import compose_selected
from supervisor_middleware.control.selection import Selection
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.generation import Generation
from supervisor_middleware.model.identifiers import some_of
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.sandbox import NAMESPACE_LABEL, Sandbox
from supervisor_middleware.model.selectors import Operator, Requirement, Selector, meet
from supervisor_middleware.model.settings import CompilerSettings
from supervisor_middleware.model.violation import Subject

_ANY: Final = "any"
_SHOWN: Final = 10
_IS_NAMED: Final = Selector(requirements=(Requirement(key=NAMESPACE_LABEL, operator=Operator.EXISTS),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A sandbox and what it runs; `policies` are those that select it, in the order of their names.

    An assumed sandbox stands for any with such labels; `title` says for which.
    """

    sandbox: Sandbox
    title: str
    is_assumed: bool
    generation: Generation
    policies: tuple[Subject, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """What it may be asked for by."""
        sandbox = self.sandbox
        return frozenset((self.title, f"{sandbox.namespace}/{sandbox.name}", sandbox.namespace))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    sandbox: Sandbox
    title: str
    is_assumed: bool


def scopes_of(
    sandboxes: Sequence[Sandbox],
    revisions: Sequence[Revision],
    *,
    namespaces: Mapping[str, Mapping[str, str]],
    bindings: Bindings,
    settings: CompilerSettings,
) -> tuple[Scope, ...]:
    """Every scope, by namespace and sandbox; `namespaces` are labels by name."""
    assumed_namespaces = dict(_assumed_namespaces(revisions, namespaces))
    known = {**namespaces, **{labels[NAMESPACE_LABEL]: labels for _, labels in assumed_namespaces.values()}}
    places = [
        *(_Place(sandbox=s, title=f"{s.namespace}/{s.name}", is_assumed=False) for s in sandboxes),
        *_assumed(revisions, namespaces, occupied={s.namespace for s in sandboxes}),
        *(
            _Place(sandbox=Sandbox(namespace=labels[NAMESPACE_LABEL], name=_ANY), title=title, is_assumed=True)
            for title, labels in assumed_namespaces.values()
        ),
    ]
    selection = Selection()
    selection.update((p.sandbox for p in places), revisions, known)
    composed: dict[tuple[str, ...], Generation] = {}
    scopes: list[Scope] = []
    for place in sorted(places, key=lambda p: (p.sandbox.namespace, p.sandbox.name, p.title)):
        selecting = selection.selecting(place.sandbox.key) or ()
        inputs = tuple(sorted(r.uid for r in selecting))
        if inputs not in composed:
            composed[inputs], _ = compose_selected(selecting, bindings=bindings, settings=settings)
        scopes.append(
            Scope(
                sandbox=place.sandbox,
                title=place.title,
                is_assumed=place.is_assumed,
                generation=composed[inputs],
                policies=tuple(sorted((r.policy for r in selecting), key=str)),
            )
        )
    return tuple(scopes)


def chosen_scopes(scopes: Sequence[Scope], wanted: str) -> tuple[Scope, ...]:
    """Those that are meant: by namespace and name, by title, or all of a namespace; every one if `wanted` is empty.

    Raises:
        InvalidInput: there is none.
    """
    found = tuple(s for s in scopes if not wanted or wanted in s.names)
    if wanted and not found:
        raise InvalidInput(f"{wanted}: {no_such(scopes)}")
    return found


def no_such(scopes: Sequence[Scope]) -> str:
    """What to say of a sandbox that is not there: which ones are."""
    return f"no such sandbox; there is {listed(scopes)}" if scopes else "there is no sandbox and no policy"


def listed(scopes: Sequence[Scope]) -> str:
    """Some of their titles: there may be thousands."""
    return some_of([s.title for s in scopes], limit=_SHOWN)


def shown_labels(labels: Mapping[str, str]) -> str:
    """`app=coder,tier=dev`, as kubectl has it."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _assumed(
    revisions: Iterable[Revision], namespaces: Mapping[str, Mapping[str, str]], *, occupied: set[str]
) -> Iterator[_Place]:
    """One sandbox a selector; where no policy is, one for what the baseline gives."""
    of: dict[str, dict[Selector, list[str]]] = {name: {} for name in namespaces if name not in occupied}
    for revision in revisions:
        namespace = revision.policy.namespace
        if namespace in of:
            of[namespace].setdefault(revision.selector, []).append(revision.policy.name)
    for namespace, selectors in of.items():
        if not selectors:
            sandbox = Sandbox(namespace=namespace, name=_ANY)
            yield _Place(sandbox=sandbox, title=f"any sandbox of {namespace}", is_assumed=True)
        for selector, names in selectors.items():
            labels = meet(selector)
            if labels is not None:
                sandbox = Sandbox(namespace=namespace, name=f"{_ANY} of {names[0]}", labels=labels)
                title = f"any sandbox of {namespace} that {_policies(names)}"
                yield _Place(sandbox=sandbox, title=title, is_assumed=True)


def _assumed_namespaces(
    revisions: Iterable[Revision], namespaces: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[str, tuple[str, dict[str, str]]]]:
    """By its name, a namespace for each baseline that selects none of those that are known."""
    for revision in revisions:
        if not revision.is_baseline or any(revision.selector.selects(labels) for labels in namespaces.values()):
            continue
        labels = meet(revision.selector, _IS_NAMED)
        if labels is not None:
            title = f"any sandbox of a namespace that baseline {revision.policy.name} selects"
            if labels[NAMESPACE_LABEL] == _ANY:
                labels[NAMESPACE_LABEL] = f"{_ANY} of {revision.policy.name}"
            yield labels[NAMESPACE_LABEL], (title, labels)


def _policies(names: Sequence[str]) -> str:
    ordered = sorted(names)
    if len(ordered) == 1:
        return f"policy {ordered[0]} selects"
    return f"policies {', '.join(ordered[:-1])} and {ordered[-1]} select"

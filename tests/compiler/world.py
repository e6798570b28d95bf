"""A world out of a golden input, compiled the way every caller compiles: all that comes of it as plain data."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import yaml

from supervisor_middleware.compiler.binding import Bindings, bind
from supervisor_middleware.compiler.composition import compose
from supervisor_middleware.compiler.drafts import draft_policy
from supervisor_middleware.compiler.pipeline import compile_policy
from supervisor_middleware.compiler.questions import question_for
from supervisor_middleware.compiler.registration import accept_registration, draft_registration
from supervisor_middleware.model.generation import Generation, seal, unseal
from supervisor_middleware.model.hosts import normalize_host
from supervisor_middleware.model.limits import MIB
from supervisor_middleware.model.manifest import Binding, Dialect, Manifest, Operation, Phase
from supervisor_middleware.model.registration import Registration
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.settings import CompilerSettings, Knowledge, Loopback, TransportPhase, Unselected
from supervisor_middleware.model.snapshot import POLICY_KINDS, BundleKey, Stored
from supervisor_middleware.model.verdict import (
    Accepted,
    Described,
    Description,
    Outage,
    Rejected,
    Undescribable,
    Unreachable,
    Verdict,
    VerdictKey,
)
from supervisor_middleware.model.violation import Report, Subject, Violation, merge
from tests.builders import NOW, a_builtin

_LONGEST_SHOWN: Final = 200


class Loader(yaml.SafeLoader):
    """YAML without dates, and with `!repeat [text, n, rest]`, `!list {times, of}` and `!map {times, of}`."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _EveryYes(dict[VerdictKey, Verdict]):
    def get(self, key: Any, default: Any = None) -> Verdict:
        return Accepted()


EVERYONE_AGREES: Final[Mapping[VerdictKey, Verdict]] = _EveryYes()
"""Verdicts of services that accept every config."""


def _repeat(loader: Loader, node: yaml.Node) -> str:
    assert isinstance(node, yaml.SequenceNode)
    text, times, *rest = loader.construct_sequence(node)
    return str(text) * int(times) + "".join(rest)


def _list(loader: Loader, node: yaml.Node) -> list[Any]:
    assert isinstance(node, yaml.MappingNode)
    given = loader.construct_mapping(node, deep=True)
    return [_numbered(given["of"], n) for n in range(given["times"])]


def _map(loader: Loader, node: yaml.Node) -> dict[str, Any]:
    return {key: value for item in _list(loader, node) for key, value in item.items()}


def _numbered(value: Any, number: int) -> Any:
    """`value` with `%n` in its texts as the number, in two digits at least; a text of nothing else is a number."""
    if isinstance(value, str):
        return number if value == "%n" else value.replace("%n", f"{number:02}")
    if isinstance(value, dict):
        return {_numbered(k, number): _numbered(v, number) for k, v in value.items()}
    return [_numbered(item, number) for item in value] if isinstance(value, list) else value


Loader.add_constructor("!repeat", _repeat)
Loader.add_constructor("!list", _list)
Loader.add_constructor("!map", _map)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a world comes to."""

    registrations: Mapping[str, Registration] = field(default_factory=dict)
    revisions: Mapping[str, Revision] = field(default_factory=dict)
    shown: Mapping[str, Any] = field(default_factory=dict)


def read(path: Path) -> Any:
    return yaml.load(path.read_text(), Loader=Loader)


def compile_world(world: Mapping[str, Any]) -> Outcome:
    """Compile `world` on top of what its `before` accepted."""
    earlier = compile_world(world["before"]) if "before" in world else Outcome()
    settings = _settings(world.get("settings", {}))
    objects = [_stored(o) for o in world["objects"] if o["kind"] != "Sandbox"]
    registrations, pending, reports = _registrations(objects, world, settings, earlier)
    bindings = bind(registrations.values(), settings.builtins)
    revisions: dict[str, Revision] = {}
    running: list[Revision] = []
    for stored in (o for o in objects if o.subject.kind in POLICY_KINDS):
        compiled = compile_policy(
            stored,
            bindings=bindings,
            verdicts=_verdicts(stored, bindings, world.get("verdicts", {})),
            settings=settings,
            accepted=earlier.revisions.get(stored.uid),
            pending=pending,
        )
        reports.append(compiled.report)
        standing = compiled.revision or earlier.revisions.get(stored.uid)
        if standing is not None:
            revisions[stored.uid] = standing
        effective = standing or compiled.draft.as_unresolved()
        running.extend([] if effective is None else [effective])
    sandboxes = {}
    for sandbox in _sandboxes(world):
        labels = world.get("namespaces", {}).get(sandbox.namespace, {})
        generation, report = compose(sandbox, running, namespace_labels=labels, bindings=bindings, settings=settings)
        reports.append(report)
        sandboxes[sandbox.key] = generation
    shown = _shown(merge(reports), registrations.values(), revisions.values(), sandboxes)
    chains = {k: {h: _chain(g, h) for h in world["hosts"]} for k, g in sandboxes.items()} if "hosts" in world else {}
    shown |= {"chains": chains} if chains else {}
    return Outcome(registrations=registrations, revisions=revisions, shown=shown)


def _registrations(
    objects: Iterable[Stored], world: Mapping[str, Any], settings: CompilerSettings, earlier: Outcome
) -> tuple[dict[str, Registration], tuple[str, ...], list[Report]]:
    """Those accepted now or before, the names of the others, and what is wrong."""
    found = [o for o in objects if o.subject.kind == "SupervisorMiddleware"]
    accepted = {o.uid: earlier.registrations[o.uid] for o in found if o.uid in earlier.registrations}
    reports: list[Report] = []
    for stored in found:
        registration, report = _register(stored, world, settings, others=accepted)
        reports.append(report)
        if registration is not None:
            accepted[stored.uid] = registration
    return accepted, tuple(o.subject.name for o in found if o.uid not in accepted), reports


def _shown(
    found: Report,
    registrations: Iterable[Registration],
    revisions: Iterable[Revision],
    sandboxes: Mapping[str, Generation],
) -> dict[str, Any]:
    return {
        "violations": [_violation(v) for v in found.violations],
        "warnings": [{"subject": str(w.subject), "path": w.path, "message": w.message} for w in found.warnings],
        "registrations": {r.name: r.manifest.digest for r in registrations},
        "revisions": {
            _name(r.policy): {
                "generation": r.generation,
                "digest": r.digest,
                "content": _brief(json.loads(r.content())),
            }
            for r in revisions
        },
        "sandboxes": {name: _sealed(generation) for name, generation in sandboxes.items()},
    }


def _name(subject: Subject) -> str:
    return f"{subject.namespace}/{subject.name}" if subject.namespace else subject.name


def _chain(generation: Generation, host: str) -> list[str]:
    """The keys of the stages that run for a host as a request names it."""
    return [s.key for s in generation.chain_for(normalize_host(host))]


def _violation(violation: Violation) -> dict[str, str]:
    fields = {
        "subject": str(violation.subject),
        "path": violation.path,
        "reason": violation.reason.value,
        "message": violation.message,
        "hint": violation.hint,
        "detail": violation.detail,
    }
    return {name: text for name, text in fields.items() if text}


def _sealed(generation: Generation) -> dict[str, Any]:
    sealed = seal(generation)
    assert unseal(sealed.payload, expected_digest=sealed.digest) == sealed
    return {"digest": sealed.digest, "generation": _brief(json.loads(sealed.payload))}


def _settings(given: Mapping[str, Any]) -> CompilerSettings:
    builtins = given.get("builtins", ["openshell/regex"])
    return CompilerSettings(
        builtins=tuple(a_builtin(name) for name in builtins),
        unselected=Unselected(given.get("unselected", "Allow")),
        loopback=Loopback(given.get("loopback", "Refused")),
        transport_phase=TransportPhase(given.get("transportPhase", "1")),
        knowledge=Knowledge(given.get("knowledge", "Live")),
    )


def _stored(document: Mapping[str, Any]) -> Stored:
    metadata = document["metadata"]
    namespace = metadata.get("namespace", "default") if document["kind"] == "SandboxPolicy" else None
    created = metadata.get("creationTimestamp")
    return Stored(
        subject=Subject(kind=document["kind"], namespace=namespace, name=metadata["name"]),
        uid=metadata.get("uid", f"{document['kind']}/{namespace}/{metadata['name']}"),
        generation=metadata.get("generation", 1),
        created_at=datetime.fromisoformat(created) if created else NOW,
        spec=document.get("spec", {}),
    )


def _sandboxes(world: Mapping[str, Any]) -> Iterator[Sandbox]:
    for document in world["objects"]:
        if document["kind"] == "Sandbox":
            spec = document["spec"]
            yield Sandbox(
                namespace=spec.get("namespace", "default"), name=spec["name"], labels=spec.get("labels", {})
            )


def _register(
    stored: Stored, world: Mapping[str, Any], settings: CompilerSettings, *, others: Mapping[str, Registration]
) -> tuple[Registration | None, Report]:
    bundles = {
        BundleKey(*k.replace("/", " ").replace(" key ", " ").split()): v for k, v in world.get("bundles", {}).items()
    }
    draft, drafted = draft_registration(stored, bundles=bundles, settings=settings)
    registrations = [_stored(o) for o in world["objects"] if o["kind"] == stored.subject.kind]
    drafts = [draft_registration(s, bundles=bundles, settings=settings)[0] for s in registrations]
    answer = world.get("manifests", {}).get(draft.name, {"unreachable": "CONNECTION_FAILED"})
    accepted, judged = accept_registration(draft, _description(answer), others=others.values(), drafts=drafts)
    return accepted, merge([drafted, judged])


def _description(answer: Mapping[str, Any]) -> Description:
    if "unreachable" in answer:
        return Unreachable(Outage[answer["unreachable"]])
    if "undescribable" in answer:
        return Undescribable(answer["undescribable"])
    bindings = tuple(
        Binding(
            id=b["id"],
            operation=Operation(b.get("operation", "HTTP_REQUEST")),
            phase=Phase(b.get("phase", "PRE_CREDENTIALS")),
            max_body_bytes=b.get("maxBodyBytes", 4 * MIB),
            timeout=b.get("timeout", ""),
        )
        for b in answer["bindings"]
    )
    dialect = Dialect(answer.get("dialect", "rfc0009"))
    return Described(Manifest(name="service", service_version="1", dialect=dialect, bindings=bindings))


def _verdicts(stored: Stored, bindings: Bindings, answers: Mapping[str, Any]) -> dict[VerdictKey, Verdict]:
    found: dict[VerdictKey, Verdict] = {}
    draft, _ = draft_policy(stored)
    for entry in draft.entries:
        question = question_for(entry, bindings.find(entry.middleware or ""))
        if question is not None:
            answer = answers.get(f"{_name(stored.subject)}/{entry.key}", "accepted")
            found[question.key] = _verdict(answer)
    return found


def _verdict(answer: str | Mapping[str, str]) -> Verdict:
    if isinstance(answer, str):
        assert answer == "accepted"
        return Accepted()
    if "rejected" in answer:
        return Rejected(answer["rejected"])
    return Unreachable(Outage[answer["unreachable"]])


def _brief(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _LONGEST_SHOWN:
        return f"<{len(value)} characters>"
    if isinstance(value, dict):
        return {k: _brief(v) for k, v in value.items()}
    return [_brief(v) for v in value] if isinstance(value, list) else value

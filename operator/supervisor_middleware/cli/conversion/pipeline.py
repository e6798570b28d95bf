"""From documents of any of the forms to those of one. PURE: the edge has read the files."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath
from typing import Final, TypeAlias, assert_never

from supervisor_middleware.cli.conversion import policies, registrations
from supervisor_middleware.cli.conversion.names import slug
from supervisor_middleware.cli.conversion.remarks import Converted, Notes, Remark
from supervisor_middleware.cli.conversion.resources import subject_of
from supervisor_middleware.cli.conversion.targets import Target
from supervisor_middleware.errors import InvalidInput
from supervisor_middleware.model.canonical import JsonObject, JsonValue
from supervisor_middleware.model.sandbox import API_VERSION

Made: TypeAlias = tuple[tuple[JsonObject, ...], tuple[Remark, ...]]


class Form(StrEnum):
    """The form a document has."""

    TOML = "a gateway's configuration"
    POLICY = "a policy of OpenShell"
    RESOURCE = "a resource of ours"
    FOREIGN = "an object of another API"
    CASES = "a list of cases for smw simulate"
    UNKNOWN = "neither a gateway's configuration, nor a policy of OpenShell, nor a resource"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One document, and the file it is of. `is_toml` is how it was written."""

    file: str
    value: JsonValue
    is_toml: bool = False

    @property
    def form(self) -> Form:
        """What it is, by its content."""
        value = self.value
        if self.is_toml:
            return Form.TOML
        if not isinstance(value, Mapping):
            return Form.CASES if _are_cases(value) else Form.UNKNOWN
        if "apiVersion" in value and "kind" in value:
            return Form.RESOURCE if value["apiVersion"] == API_VERSION else Form.FOREIGN
        return Form.POLICY if policies.MARKS & value.keys() else Form.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What the result is called. Empty: policies after their file, and in no namespace."""

    name: str = ""
    namespace: str = ""


def convert(
    sources: Iterable[Source],
    *,
    to: Target | None,
    names: Names,
    bundles: Mapping[str, Mapping[str, str]] | None = None,
) -> tuple[Target, Converted]:
    """Every document in the form asked for; without `to`, OpenShell's files become resources.

    `bundles` is, by file, PEM by the path that the file names.

    Raises:
        InvalidInput: the form cannot be told, or there is nothing to convert.
    """
    found = tuple(sources)
    target = to or _inferred(found)
    work = _Work(target=target, names=names, bundles=bundles or {})
    made = [work.take(source) for source in found]
    documents = tuple(d for ours, _ in made for d in ours)
    if not documents:
        raise InvalidInput(f"nothing to convert to {target.value}: {_NEEDED[target]}")
    return target, Converted(documents=documents, remarks=tuple(r for _, remarks in made for r in remarks))


_NEEDED: Final[Mapping[Target, str]] = {
    Target.RESOURCES: "no [[openshell.supervisor.middleware]] in TOML, no network_middlewares in YAML",
    Target.TOML: "there is no SupervisorMiddleware",
    Target.OPENSHELL: "there is no SandboxPolicy",
}


def _inferred(sources: tuple[Source, ...]) -> Target:
    forms = {source.form for source in sources}
    if Form.RESOURCE in forms and not forms & {Form.TOML, Form.POLICY}:
        raise InvalidInput("the files hold resources: say --to toml (registrations) or --to openshell (policies)")
    return Target.RESOURCES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    target: Target
    names: Names
    bundles: Mapping[str, Mapping[str, str]]
    policy_names: set[str] = field(default_factory=set)
    registration_names: set[str] = field(default_factory=set)

    def take(self, source: Source) -> Made:
        """The documents of one source, and what there is to say."""
        value = source.value
        if not isinstance(value, Mapping) or source.form in {Form.UNKNOWN, Form.FOREIGN}:
            return _left_out(source)
        match self.target:
            case Target.RESOURCES:
                return self._to_resources(source, value)
            case Target.TOML:
                return _back(source, value, kinds={registrations.KIND}, change=registrations.to_toml_entry)
            case Target.OPENSHELL:
                kinds = {policies.KIND, policies.BASELINE}
                return _back(source, value, kinds=kinds, change=policies.to_policy)
            case _:
                assert_never(self.target)

    def _to_resources(self, source: Source, value: JsonObject) -> Made:
        if source.form is Form.TOML:
            bundles = self.bundles.get(source.file, {})
            return registrations.from_toml(value, file=source.file, bundles=bundles, used=self.registration_names)
        if source.form is Form.RESOURCE:
            return _said(source.file, f"{subject_of(value)} is a resource already")
        wanted = self.names.name or PurePath(source.file).stem
        name = slug(wanted, taken=self.policy_names, otherwise="policy")
        self.policy_names.add(name)
        document, remarks = policies.from_policy(value, file=source.file, name=name, namespace=self.names.namespace)
        return (document,), remarks


def _back(
    source: Source,
    value: JsonObject,
    *,
    kinds: set[str],
    change: Callable[..., tuple[JsonObject, tuple[Remark, ...]]],
) -> Made:
    if source.form is not Form.RESOURCE:
        return _said(source.file, f"{source.form.value} is no resource, and left out")
    if value.get("kind") not in kinds:
        return _said(source.file, f"{subject_of(value)} is not of this form, and left out")
    document, remarks = change(value, subject=subject_of(value))
    return (document,), remarks


def _are_cases(value: JsonValue) -> bool:
    return isinstance(value, list) and all(isinstance(c, Mapping) and "request" in c for c in value) and bool(value)


def _left_out(source: Source) -> Made:
    notes = Notes(source.file)
    if source.form in {Form.FOREIGN, Form.CASES}:
        notes.skipped((), f"{source.form.value} is left out")
    else:
        notes.lost((), f"a document is {source.form.value}")
    return (), tuple(notes.remarks)


def _said(file: str, message: str) -> Made:
    notes = Notes(file)
    notes.skipped((), message)
    return (), tuple(notes.remarks)

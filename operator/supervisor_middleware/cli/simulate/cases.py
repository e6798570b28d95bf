"""`cases.yaml`: requests and what is expected of them, so that a policy has tests of its own. PURE: text to values.

Closed fields; every problem of a file is reported at once, with its path and line.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, model_validator

from supervisor_middleware.compiler.structure import parse
from supervisor_middleware.model import fields
from supervisor_middleware.model.durations import DEADLINE_RULE, read_duration
from supervisor_middleware.model.evaluation import FailureCode
from supervisor_middleware.model.limits import MIB
from supervisor_middleware.model.violation import Reason, Report, Subject, Violation, merge, report
from supervisor_middleware.sources.assembly import FILE, about_file, findings_of
from supervisor_middleware.sources.documents import Document, lines_of, read_documents
from supervisor_middleware.sources.places import line_of

MAX_MADE_BODY_BYTES: Final = 64 * MIB
FAULTS: Final[Mapping[str, FailureCode]] = {
    "timeout": FailureCode.TIMEOUT,
    "unavailable": FailureCode.SERVICE_ERROR,
    "invalid": FailureCode.INVALID_DECISION,
}
"""What an injected fault is to the chain."""


class _Written(fields.Resource):
    """Base of what authors of cases write; values are theirs, so they may be shown to them."""

    model_config = ConfigDict(populate_by_name=True)


def _checked_duration(text: str) -> str:
    if read_duration(text) is None:
        raise fields.refuse(Reason.INVALID_TIMEOUT, f"must be {DEADLINE_RULE}")
    return text


_Duration = Annotated[str, AfterValidator(_checked_duration)]


class RequestSpec(_Written):
    """A request as the agent sends it. `bodyBytes` makes a body of so many letters, to meet a limit."""

    host: str = Field(min_length=1)
    method: str = ""
    scheme: Literal["http", "https"] = "https"
    path: str = "/"
    headers: dict[str, str | list[str]] = Field(default_factory=dict)
    body: str | None = None
    body_bytes: Annotated[int, Field(ge=0, le=MAX_MADE_BODY_BYTES)] | None = None

    @model_validator(mode="after")
    def _has_one_body(self) -> "RequestSpec":
        if self.body is not None and self.body_bytes is not None:
            raise fields.refuse(Reason.MALFORMED, "must have body or bodyBytes, not both")
        return self

    @property
    def content(self) -> bytes | None:
        """The body's bytes; None without one."""
        if self.body_bytes is not None:
            return b"a" * self.body_bytes
        return None if self.body is None else self.body.encode()


class HeaderSpec(_Written):
    """One header mutation."""

    write: str | None = None
    value: str = ""
    on_existing: Literal["append", "overwrite", "skip"] = "overwrite"
    remove: str | None = None

    @model_validator(mode="after")
    def _does_one_thing(self) -> "HeaderSpec":
        if (self.write is None) is (self.remove is None):
            raise fields.refuse(Reason.MALFORMED, "must have write or remove, and not both")
        return self


class FindingSpec(_Written):
    """One finding of a service."""

    type: str
    label: str = ""
    count: int = 1
    confidence: str = ""
    severity: str = ""


class AnswerSpec(_Written):
    """What a service answers, or how it fails, and how long it takes."""

    decision: Literal["allow", "deny"] | None = None
    reason_code: str = ""
    body: str | None = None
    headers: list[HeaderSpec] = Field(default_factory=list)
    findings: list[FindingSpec] = Field(default_factory=list)
    metadata: dict[str, str] = Field(default_factory=dict)
    fails: Literal["timeout", "unavailable", "invalid"] | None = None
    after: _Duration = "0s"

    @model_validator(mode="after")
    def _answers_or_fails(self) -> "AnswerSpec":
        if (self.decision is None) is (self.fails is None):
            raise fields.refuse(Reason.MALFORMED, "must have decision or fails, and not both")
        return self


class ExpectSpec(_Written):
    """What is expected; a field that is absent is not looked at.

    `stages` are the keys of all that apply to the host, in order. A header of null must not reach the upstream.
    """

    decision: Literal["allow", "deny"] | None = None
    reason: Literal["middleware_denied", "middleware_failed"] | None = None
    by: str | None = None
    reason_code: str | None = None
    code: str | None = None
    stages: list[str] | None = None
    bypassed: list[str] | None = None
    body: str | None = None
    body_contains: str | None = None
    headers: dict[str, str | None] | None = None
    findings: list[str] | None = None


class CaseSpec(_Written):
    """One request of one sandbox and what is expected of it. `answers` are by stage key or binding ID."""

    name: str = Field(min_length=1, max_length=256)
    sandbox: str | None = None
    request: RequestSpec
    answers: dict[str, AnswerSpec] = Field(default_factory=dict)
    expect: ExpectSpec = Field(default_factory=ExpectSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A case and where it stands: `lines` by path within the case."""

    spec: CaseSpec
    file: str = ""
    line: int = 1
    lines: Mapping[str, int] = field(default_factory=dict, repr=False)
    given: bytes | None = field(default=None, repr=False)
    """A body that is no text, instead of the request's."""

    @property
    def content(self) -> bytes | None:
        """The body's bytes; None without one."""
        return self.spec.request.content if self.given is None else self.given

    def line_of(self, path: str) -> int:
        """The line of a field, or of the closest thing above it."""
        return line_of(self.lines, path, otherwise=self.line)


def cases_schema() -> dict[str, Any]:
    """The form of a file of cases, as JSON Schema."""
    return TypeAdapter(list[CaseSpec]).json_schema(by_alias=True)


def read_cases(content: bytes, *, name: str) -> tuple[tuple[Case, ...], Report]:
    """The cases of a file called `name`, and everything that is wrong with it."""
    parsed = read_documents(content)
    cases: list[Case] = []
    reports = [findings_of(name, problems=parsed.problems, advice=())]
    for document in parsed.documents:
        violations: list[Violation] = []
        cases.extend(_cases(content, document, name=name, violations=violations))
        reports.append(report(violations))
    if not parsed.documents and not parsed.problems:
        reports.append(report([about_file(name, "", "holds no case", hint="write a list of cases")]))
    return tuple(cases), merge((*reports, report(_namesakes(cases, name))))


def _cases(content: bytes, document: Document, *, name: str, violations: list[Violation]) -> Iterator[Case]:
    if not isinstance(document.value, list):
        text = "must be a list of cases"
        violations.append(about_file(name, f"line {document.line}", text, hint="begin each case with a dash"))
        return
    lines = lines_of(content, document)
    for number, value in enumerate(document.value):
        found, _ = parse(CaseSpec, value, subject=Subject(kind=FILE, name=name), at=())
        prefix = f"[{number}]"
        line = lines.get(prefix, document.line)
        own = {p.removeprefix(prefix).removeprefix("."): n for p, n in lines.items() if _is_within(p, prefix)}
        if found:
            violations.extend(_located(v, own, line=line, prefix=prefix) for v in found)
        else:
            yield Case(spec=CaseSpec.model_validate(value), file=name, line=line, lines=own)


def _is_within(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith((f"{prefix}.", f"{prefix}["))


def _located(violation: Violation, lines: Mapping[str, int], *, line: int, prefix: str) -> Violation:
    path = violation.path
    whole = prefix + (f".{path}" if path and not path.startswith("[") else path)
    return about_file(
        violation.subject.name,
        f"line {line_of(lines, path, otherwise=line)}, {whole}",
        violation.message,
        hint="smw schema cases has every field"
        if violation.hint.startswith("write it in this form")
        else violation.hint,
        reason=violation.reason,
    )


def _namesakes(cases: list[Case], name: str) -> Iterator[Violation]:
    seen: dict[str, int] = {}
    for case in cases:
        if case.spec.name in seen:
            text = f"another case has this name, on line {seen[case.spec.name]}"
            where = f"line {case.line_of('name')}, name"
            yield about_file(name, where, text, hint="rename one", reason=Reason.DUPLICATE_NAME)
        seen.setdefault(case.spec.name, case.line)

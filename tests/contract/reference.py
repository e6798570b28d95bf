"""The reference pages in `docs/reference/`, out of the code, so that they cannot say anything else than it.

What code cannot tell (what a name means to an administrator) stands here beside the name; a name that has no such
words yet is still listed.
"""

import ast
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from enum import Enum, EnumType
from pathlib import Path
from typing import Any, Final

from prometheus_client.metrics import MetricWrapperBase
from pydantic.fields import FieldInfo

from supervisor_middleware.cli.capabilities.limits import meaning_of
from supervisor_middleware.control.conditions import CLASSES, ConditionReason
from supervisor_middleware.model import limits
from supervisor_middleware.model.durations import format_duration
from supervisor_middleware.model.evaluation import FailureCode
from supervisor_middleware.model.violation import RETRYABLE, Reason
from supervisor_middleware.settings import EnrollSettings, OperatorSettings, StandaloneSettings, SupervisorSettings
from supervisor_middleware.telemetry import ControlMetrics, SupervisorMetrics
from tests.contract.markdown import code, page, table
from tests.contract.reference_cli import cli, commands
from tests.contract.reference_resources import resources
from tests.contract.reference_words import CONDITION_REASONS, FAILURES, REASONS, SETTINGS

_FOLDER: Final = Path("docs/reference")


def reference() -> dict[Path, bytes]:
    """Every page by its path."""
    pages = {
        "cli.md": cli,
        "limits.md": limits_page,
        "metrics.md": metrics,
        "resources.md": resources,
        "settings.md": settings,
        "violations.md": violations,
    }
    return {_FOLDER / name: produce() for name, produce in pages.items()}


# ------------------------------------------------------------------------------------------------------------ limits


def limits_page() -> bytes:
    """Every number of `model/limits.py`, grouped and explained as there."""
    intro = (
        "Sizes are in bytes unless the name says otherwise. CRDs, webhook, supervisor and SDK read these numbers from "
        "one place (`model/limits.py`), so they cannot differ. None of them is a setting."
    )
    parts = []
    for heading, names in _groups(Path(limits.__file__).read_text(encoding="utf-8")):
        rows = [(code(n), _number(getattr(limits, n)), meaning_of(n)) for n in names]
        parts += [f"## {heading}", table(("Name", "Value", "What it bounds"), rows)]
    return page("Limits", textwrap.fill(intro, 110), *parts)


def _groups(source: str) -> Iterator[tuple[str, list[str]]]:
    """Blocks of constants between blank lines; the comment above a block is its heading."""
    lines = source.splitlines()
    heading = "Other"
    names: list[str] = []
    units = {"KIB", "MIB"}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.target.id in units:
            continue
        above = node.lineno - 2
        comment: list[str] = []
        while lines[above].startswith("#"):
            comment.insert(0, lines[above].removeprefix("#").strip())
            above -= 1
        if not lines[above].strip():
            if names:
                yield heading, names
            heading, names = (" ".join(comment).rstrip(".") or "Names and structure"), []
        names.append(node.target.id)
    yield heading, names


def _number(value: object) -> str:
    match value:
        case timedelta():
            return f"{value // timedelta(hours=1)} h" if value >= timedelta(hours=1) else format_duration(value)
        case int() if value >= limits.MIB and value % limits.MIB == 0:
            return f"{value} ({value // limits.MIB} MiB)"
        case int() if value >= limits.KIB and value % limits.KIB == 0:
            return f"{value} ({value // limits.KIB} KiB)"
        case _:
            return code(value) if isinstance(value, str) else str(value)


# ----------------------------------------------------------------------------------------------------------- metrics


def metrics() -> bytes:
    """Every metric the two processes can expose."""
    intro = (
        "Prometheus text format at `/metrics` of the health port. No metric has a label per sandbox: there may be "
        "thousands. Names are public surface. Which are worth a look: [operations](../operations.md#health-logs-metrics)."
    )
    parts = []
    for heading, owner in (
        ("Control plane (`smw operator`, `smw standalone`)", ControlMetrics()),
        ("Supervisor (`smw supervisor`)", SupervisorMetrics()),
    ):
        found = [m for m in vars(owner).values() if isinstance(m, MetricWrapperBase)]
        parts += [f"## {heading}", table(("Name", "Kind", "Labels", "Meaning"), map(_metric, found))]
    return page("Metrics", textwrap.fill(intro, 110), *parts)


def _metric(metric: Any) -> tuple[str, ...]:
    name = metric._name + ("_total" if metric._type == "counter" else "")
    buckets: Iterable[float] = getattr(metric, "_upper_bounds", ())
    bounds = ", ".join(f"{b:g}" for b in buckets if b != float("inf"))
    text = metric._documentation + (f" Buckets in seconds: {bounds}." if bounds else "")
    return code(name), metric._type, ", ".join(map(code, metric._labelnames)), text


# ---------------------------------------------------------------------------------------------------------- settings


def settings() -> bytes:
    """Every `SMW_...` name by command."""
    intro = (
        "Read once, at the start, from the environment. A flag wins over the environment. A setting that is wrong "
        "ends the command with exit code 2 and names the setting, never its value. Durations are an integer "
        'with `s`, `m` or `h` (`24h`), or ISO 8601; lists are separated by commas, or JSON (`["a", "b"]`).'
    )
    parts = []
    for command, model in (
        ("operator", OperatorSettings),
        ("standalone", StandaloneSettings),
        ("supervisor", SupervisorSettings),
        ("enroll", EnrollSettings),
    ):
        flags = {p.name: p.opts[0] for p in commands()[command].params if p.opts[0].startswith("--")}
        rows = [_setting(name, info, flags) for name, info in model.model_fields.items()]
        parts += [f"## smw {command}", table(("Environment", "Flag", "Default", "Meaning"), rows)]
    return page("Settings", textwrap.fill(intro, 110), *parts)


def _setting(name: str, info: FieldInfo, flags: Mapping[str, str]) -> tuple[str, ...]:
    flag = flags.get({"operators": "operator", "loopback": "allow_loopback"}.get(name, name), "")
    choices = _choices(info.annotation)
    allowed = f" {' or '.join(code(c) for c in choices)}." if choices else ""
    return code(f"SMW_{name.upper()}"), code(flag), _default(info), SETTINGS.get(name, "") + allowed


def _choices(kind: object) -> list[str]:
    members: Mapping[str, Any] = kind.__members__ if isinstance(kind, EnumType) else {}
    return [m.value for m in members.values()]


def _default(info: FieldInfo) -> str:
    value = info.default
    if info.is_required() or value is None:
        return "required" if info.is_required() else ""
    match value:
        case timedelta():
            return code(format_duration(value) if value % timedelta(hours=1) else f"{value // timedelta(hours=1)}h")
        case Enum():
            return code(value.value)
        case tuple():
            return code(", ".join(value)) if value else ""
        case _:
            return code(value)


# -------------------------------------------------------------------------------------------------------- violations


def violations() -> bytes:
    """Reasons of violations, of conditions, and of failed stages."""
    reasons = [
        (
            code(r.value),
            code(CLASSES.get(r, ConditionReason.INVALID).value),
            "yes" if r in RETRYABLE else "",
            REASONS[r],
        )
        for r in Reason
    ]
    conditions = [(code(r.value), CONDITION_REASONS[r]) for r in ConditionReason]
    failures = [(code(c.value), FAILURES.get(c, "")) for c in FailureCode]
    return page(
        "Violations, conditions, failures",
        "A *violation* is a problem that validation finds in an object. The same text comes from `smw validate`, the "
        "webhook and the status, each with the path of the field; never with its value.",
        "## Reasons of violations",
        "*Condition* is the coarse class a condition shows as its reason. *Retryable* ones may pass without an edit: "
        "the webhook answers 503 if all are, so that GitOps tools try again, and 422 otherwise.",
        table(("Reason", "Condition", "Retryable", "What is wrong"), reasons),
        "## Reasons of conditions",
        table(("Reason", "Meaning"), conditions),
        "## Failure codes of a stage",
        "Why a stage gave no valid result for one request. They stand in audit events, in the label `reason` of "
        "`supervisor_middleware_bypass_total`, and in the `detail` of a refusal whose `error` is `middleware_failed`.",
        table(("Code", "Meaning"), failures),
    )

"""What a stage observed, as events. PURE.

RFC 0009 "Audit and logging": an operator-run service's finding text is untrusted, so the platform's own words stand
in for it and only counts and a severity out of a closed list remain; built-ins keep their audit-safe type. Labels
and confidences reach no event from anybody.
"""

from collections import Counter
from typing import Final

from supervisor_middleware.audit.events import Found, Severity, StageRef
from supervisor_middleware.model.evaluation import Finding
from supervisor_middleware.model.generation import Stage
from supervisor_middleware.model.identifiers import status_text

# The wire's count is a uint32; a sum of hostile ones stays one.
MAX_COUNT: Final = 2**32 - 1

_SEVERITIES: Final = {"low": Severity.LOW, "medium": Severity.MEDIUM, "high": Severity.HIGH}


def found(stage: Stage, ref: StageRef, findings: tuple[Finding, ...]) -> tuple[Found, ...]:
    """One event for each type and severity, counts added up, in the order of their first finding."""
    counts: Counter[tuple[str, Severity]] = Counter()
    for finding in findings:
        counts[_type(stage, finding), _SEVERITIES.get(finding.severity.lower(), Severity.MEDIUM)] += finding.count
    return tuple(
        Found(stage=ref, type=type_, count=min(count, MAX_COUNT), severity=severity)
        for (type_, severity), count in counts.items()
    )


def _type(stage: Stage, finding: Finding) -> str:
    return status_text(finding.type) if stage.service is None else f"{stage.service}.finding"

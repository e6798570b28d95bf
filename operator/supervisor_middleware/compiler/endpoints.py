"""The destinations of a policy, `networkPolicies.<key>.endpoints[]`. PURE: what middleware must know of them.

It is no allow-list of ours. `tls: skip` says that nobody looks inside, so no selector may cover the host;
`enforcement: audit` lets what breaks a rule go on. Everything else of a rule passes through unread.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from supervisor_middleware.compiler.structure import path_of
from supervisor_middleware.model.hosts import HostPattern, normalize_host, parse_pattern
from supervisor_middleware.model.violation import Reason, Subject, Violation

_SKIP: Final = "skip"
_AUDIT: Final = "audit"
ANY_HOST: Final = HostPattern(("**",))
"""What an endpoint without a host may be: addresses alone say nothing of names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointDraft:
    """One destination; `host` None where what is written is no host of ours (and nothing depends on it)."""

    path: str
    host: HostPattern | None
    is_skipped: bool
    is_audited: bool
    protocol: str = ""


def draft_endpoints(
    spec: Mapping[str, Any], *, subject: Subject
) -> tuple[tuple[EndpointDraft, ...], tuple[Violation, ...]]:
    """Every endpoint of a policy that can be read, and what is wrong with those that matter."""
    drafts: list[EndpointDraft] = []
    violations: list[Violation] = []
    for path, raw in _raw_endpoints(spec):
        host, protocol = _host(raw.get("host")), raw.get("protocol")
        drafts.append(
            EndpointDraft(
                path=path,
                host=host,
                is_skipped=raw.get("tls") == _SKIP,
                is_audited=raw.get("enforcement") == _AUDIT,
                protocol=protocol if isinstance(protocol, str) else "",
            )
        )
        violations.extend(_problems(raw, host, path=path, subject=subject))
    return tuple(drafts), tuple(violations)


def _problems(
    raw: Mapping[str, Any], host: HostPattern | None, *, path: str, subject: Subject
) -> Iterator[Violation]:
    tls = raw.get("tls")
    if isinstance(tls, str) and tls != _SKIP and tls.strip().lower() == _SKIP:
        yield Violation(
            subject=subject,
            path=f"{path}.tls",
            reason=Reason.MALFORMED,
            message=f"must be exactly {_SKIP}, in lower case, or another value",
            hint=f"write {_SKIP}",
        )
    if tls == _SKIP and host is None:
        yield Violation(
            subject=subject,
            path=f"{path}.host",
            reason=Reason.INVALID_PATTERN,
            message="must be a host or host pattern, because with tls: skip no middleware may select it",
            hint="write a host such as db.example.com or *.example.com, without port",
        )


def _raw_endpoints(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    policies = spec.get("networkPolicies")
    for key, policy in policies.items() if isinstance(policies, Mapping) else ():
        endpoints = policy.get("endpoints") if isinstance(policy, Mapping) else None
        for number, raw in enumerate(endpoints if isinstance(endpoints, list) else ()):
            if isinstance(raw, Mapping):
                yield path_of(("spec", "networkPolicies", str(key), "endpoints", number)), raw


def _host(text: object) -> HostPattern | None:
    """A pattern, or an IPv6 literal with or without brackets; without a host, any."""
    if text is None or text == "":
        return ANY_HOST
    if not isinstance(text, str):
        return None
    if ":" in text:
        try:
            return HostPattern((normalize_host(text if text.startswith("[") else f"[{text}]"),))
        except ValueError:
            return None
    try:
        pattern = parse_pattern(text)
        if "*" not in text:
            normalize_host(text)  # no host is spelled 010.0.0.1, so that pattern would match nothing
    except ValueError:
        return None
    return pattern

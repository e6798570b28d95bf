"""Warnings are right, short, and never a refusal."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from supervisor_middleware.compiler.binding import Bindings, bind
from supervisor_middleware.compiler.drafts import draft_policy
from supervisor_middleware.compiler.pipeline import compile_policy
from supervisor_middleware.compiler.questions import questions
from supervisor_middleware.model.limits import MIB
from supervisor_middleware.model.settings import CompilerSettings, Knowledge
from supervisor_middleware.model.snapshot import Stored
from supervisor_middleware.model.verdict import Accepted
from tests.builders import (
    a_binding,
    a_builtin,
    a_connection,
    a_manifest,
    a_policy,
    an_accepted_registration,
    an_entry_spec,
    some_settings,
)

AT = "spec.networkMiddlewares"
INTRICATE = {
    "include": [f"**.{a}*.*.*{b}.*.*{a}*.*.**.x" for a, b in ("ab", "cd", "ef", "gh")],
    "exclude": ["*.**.x", *(f"**.{a}*.**.{b}*.**.x" for a in "ab" for b in "abcdefg")],
}
SECRET = "sk-A1b2C3d4E5f6G7h8I9j0"


def a_service(identifier: str, *, limit: int = 65536, timeout: timedelta = timedelta(milliseconds=500)) -> Any:
    return an_accepted_registration(
        identifier.replace("/", "-"),
        connection=a_connection(timeout=timeout),
        max_body_bytes=limit,
        manifest=a_manifest(a_binding(identifier)),
    )


def known(*services: Any) -> Bindings:
    return bind(services, (a_builtin(),))


def warned(policy: Stored, *services: Any, settings: CompilerSettings | None = None) -> dict[str, str]:
    """The warnings of a policy that is valid, by path."""
    bindings = known(*services)
    verdicts = {q.key: Accepted() for q in questions(draft_policy(policy)[0], bindings)}
    compiled = compile_policy(policy, bindings=bindings, verdicts=verdicts, settings=settings or some_settings())
    assert compiled.report.violations == ()
    assert all(len(str(w)) <= 256 for w in compiled.report.warnings), "an API server would cut it"
    return {w.path: w.message for w in compiled.report.warnings}


# ------------------------------------------------------------------------------------------------ what fails open


@pytest.mark.parametrize(
    ("binding", "key", "name"),
    [
        ("acme/redactor", "one", None),
        ("acme/pii", "one", None),
        ("acme/x", "dlp", None),
        ("acme/x", "one", "Anonymize names"),
        ("acme/x", "one", "SANITISE"),
        ("openshell/regex", "one", None),
        ("acme/secret-scan", "one", None),
    ],
)
def test_a_redactor_that_fails_open_is_warned_of(binding: str, key: str, name: str | None) -> None:
    policy = a_policy(entries={key: an_entry_spec(binding, onError="FailOpen", **({"name": name} if name else {}))})
    assert warned(policy, a_service(binding if binding.startswith("acme") else "acme/y")) == {
        f"{AT}.{key}.onError": f"when {binding} fails, requests pass with all that it would have removed; "
        "FailClosed refuses them"
    }


@pytest.mark.parametrize("binding", ["acme/traces", "acme/budget", "acme/topiic"])
def test_an_exporter_that_fails_open_is_as_the_rfc_has_it(binding: str) -> None:
    assert warned(a_policy(key="export", middleware=binding, onError="FailOpen"), a_service(binding)) == {}


def test_a_redactor_that_fails_closed_is_no_matter() -> None:
    assert warned(a_policy(key="redact", middleware="acme/redactor"), a_service("acme/redactor")) == {}


# -------------------------------------------------------------------------------------------------- dead configs


@pytest.mark.parametrize(
    ("include", "exclude", "is_dead"),
    [
        (["*.example.com"], ["**.example.com"], True),
        (["a.test", "b.test"], ["*.test"], True),
        (["*"], ["*"], True),
        (["**.example.com"], ["*.example.com"], False),
        (["a.test", "b.example.com"], ["*.test"], False),
        (["*.1"], ["x.test"], True),
        (["a.test"], [], False),
    ],
    ids=str,
)
def test_a_config_that_selects_no_host_is_warned_of(include: list[str], exclude: list[str], *, is_dead: bool) -> None:
    policy = a_policy(spec=_spec({"one": {**an_entry_spec("acme/x"), "endpoints": _endpoints(include, exclude)}}))
    assert (f"{AT}.one.endpoints" in warned(policy, a_service("acme/x"))) is is_dead


def test_what_is_too_intricate_to_be_decided_is_not_warned_of() -> None:
    entries = {
        "small": {**an_entry_spec("acme/small", order=1), "endpoints": INTRICATE},
        "large": an_entry_spec("acme/large", order=2, include=["**"]),
    }
    services = [a_service("acme/small", limit=1000), a_service("acme/large", limit=MIB)]
    assert warned(a_policy(entries=entries), *services) == {}


# ------------------------------------------------------------------------------------------------- limits of stages


def test_a_stage_that_takes_less_than_another_of_its_hosts_is_warned_of() -> None:
    policy = a_policy(
        entries={
            "small": an_entry_spec("acme/small", order=1),
            "middle": an_entry_spec("acme/middle", order=2),
            "large": an_entry_spec("acme/large", order=3, include=["**"]),
        }
    )
    services = [
        a_service("acme/small", limit=1000),
        a_service("acme/middle", limit=2000),
        a_service("acme/large", limit=MIB),
    ]
    found = warned(policy, *services)
    assert set(found) == {f"{AT}.small.middleware", f"{AT}.middle.middleware"}
    assert found[f"{AT}.small.middleware"] == (
        "takes bodies up to 1000 bytes and large up to 1048576: for a.example.com and hosts like it, small refuses "
        "every body above its own limit"
    )


@pytest.mark.parametrize(
    "small",
    [
        {"endpoints": {"include": ["*.other.test"]}},
        {"onError": "FailOpen"},
        {"endpoints": {"include": ["**"], "exclude": ["**.example.com"]}},
    ],
    ids=["hosts apart", "it fails open", "hosts excluded"],
)
def test_limits_that_surprise_nobody_are_not_warned_of(small: dict[str, Any]) -> None:
    entries = {
        "small": {**an_entry_spec("acme/small", order=1), **small},
        "large": an_entry_spec("acme/large", order=2),
    }
    services = [a_service("acme/small", limit=1000), a_service("acme/large", limit=MIB)]
    assert warned(a_policy(entries=entries), *services) == {}


def test_equal_limits_are_not_warned_of() -> None:
    entries = {n: an_entry_spec(f"acme/{n}", order=i) for i, n in enumerate("ab")}
    assert warned(a_policy(entries=entries), a_service("acme/a"), a_service("acme/b")) == {}


# -------------------------------------------------------------------------------------------------------- latency


def slow(seconds: Mapping[str, float], **includes: list[str]) -> tuple[Stored, list[Any]]:
    entries = {
        name: an_entry_spec(f"acme/{name}", order=i, include=includes.get(name, ["*.example.com"]))
        for i, name in enumerate(seconds)
    }
    services = [a_service(f"acme/{n}", timeout=timedelta(seconds=s)) for n, s in seconds.items()]
    return a_policy(entries=entries), services


def test_a_chain_longer_than_the_budget_is_warned_of_and_one_as_long_is_not() -> None:
    policy, services = slow({"a": 2, "b": 3})
    assert warned(policy, *services) == {}
    policy, services = slow({"a": 2, "b": 3.001})
    assert warned(policy, *services) == {
        AT: "a request to a.example.com may wait 5001ms for 2 stages, longer than the 5s that are set as the budget; "
        "shorten timeouts or run fewer stages"
    }


def test_one_stage_may_be_too_slow_by_itself() -> None:
    policy, services = slow({"a": 6}, a=["api.example.com"])
    assert "a request to api.example.com may wait 6s for 1 stages" in warned(policy, *services)[AT]


def test_the_operator_sets_the_budget() -> None:
    policy, services = slow({"a": 2, "b": 3})
    settings = CompilerSettings(builtins=(a_builtin(),), latency_budget=timedelta(seconds=1))
    assert "longer than the 1s" in warned(policy, *services, settings=settings)[AT]


def test_stages_of_different_hosts_do_not_add_up() -> None:
    policy, services = slow({"a": 3, "b": 3, "c": 1}, a=["*.a.test"], b=["*.b.test"], c=["**"])
    assert warned(policy, *services) == {}


def test_two_stages_that_meet_in_one_host_only_add_up() -> None:
    policy, services = slow({"a": 3, "b": 3}, a=["*.a.test"], b=["b.*.test"])
    assert "a request to b.a.test may wait 6s for 2 stages" in warned(policy, *services)[AT]


def test_a_chain_ends_after_thirty_seconds_in_any_case() -> None:
    policy, services = slow({"a": 30, "b": 30})
    assert "may wait 30s for 2 stages" in warned(policy, *services)[AT]


def test_a_chain_that_no_host_has_is_not_warned_of() -> None:
    entries = {"a": {**an_entry_spec("acme/a"), "endpoints": _endpoints(["a.test"], ["a.test"])}}
    found = warned(a_policy(entries=entries), a_service("acme/a", timeout=timedelta(seconds=6)))
    assert set(found) == {f"{AT}.a.endpoints"}


# ---------------------------------------------------------------------------------------------------------- audits


def audited(
    *endpoints: Any, first: dict[str, Any] | None = None, second: dict[str, Any] | None = None
) -> dict[str, str]:
    entries = {
        "first": an_entry_spec("acme/a", order=1, **(first or {})),
        "second": an_entry_spec("acme/a", order=2, **(second or {})),
    }
    spec = {**_spec(entries), "networkPolicies": {"api": {"endpoints": list(endpoints)}}}
    return warned(a_policy(spec=spec), a_service("acme/a"))


def an_endpoint(
    host: str | None = "api.example.com", *, protocol: str = "graphql", enforcement: str = "audit"
) -> dict[str, Any]:
    return {"host": host, "protocol": protocol, "enforcement": enforcement}


@pytest.mark.parametrize("protocol", ["graphql", "json-rpc", "jsonrpc", "mcp", "MCP"])
def test_an_audited_denial_that_skips_a_fail_closed_stage_is_warned_of(protocol: str) -> None:
    assert audited(an_endpoint(protocol=protocol)) == {
        "spec.networkPolicies.api.endpoints[0].enforcement": "a denial that is only audited ends the chain: the "
        "request goes on without second, although it is FailClosed; use enforcement: enforce"
    }


def test_more_such_endpoints_are_one_warning() -> None:
    found = audited(an_endpoint("x.test"), an_endpoint(), an_endpoint("*.example.com"), an_endpoint(None))
    assert list(found) == ["spec.networkPolicies.api.endpoints[1].enforcement"]
    assert "(and for 2 more endpoints)" in next(iter(found.values()))


@pytest.mark.parametrize(
    "world",
    [
        {"endpoint": an_endpoint(enforcement="enforce")},
        {"endpoint": an_endpoint(protocol="rest")},
        {"endpoint": {"host": "api.example.com", "enforcement": "audit", "protocol": None}},
        {"endpoint": an_endpoint("api.other.test")},
        {"endpoint": an_endpoint("not a host")},
        {"endpoint": an_endpoint(), "second": {"onError": "FailOpen"}},
        {"endpoint": an_endpoint(), "second": {"include": ["*.other.test"]}},
    ],
    ids=[
        "enforced",
        "no body",
        "no protocol",
        "another host",
        "no host",
        "the later fails open",
        "the later is not there",
    ],
)
def test_an_audit_that_skips_nothing_is_not_warned_of(world: dict[str, Any]) -> None:
    assert audited(world["endpoint"], second=world.get("second")) == {}


# ----------------------------------------------------------------------------------------------- secrets and sizes


def test_a_credential_is_named_by_its_place_and_never_shown() -> None:
    found = warned(a_policy(key="x", middleware="acme/x", config={"auth": [{"key": SECRET}]}), a_service("acme/x"))
    assert found == {
        f"{AT}.x.config.auth[0].key": "looks like a credential; whoever reads the policy sees it: keep it in the service"
    }


def test_several_credentials_of_a_config_are_one_warning() -> None:
    config = {"b": {"token": "12345678"}, "a": SECRET}
    found = warned(a_policy(key="x", middleware="acme/x", config=config), a_service("acme/x"))
    assert list(found) == [f"{AT}.x.config.a"]
    assert "(2 of them)" in found[f"{AT}.x.config.a"]


def test_a_deep_place_is_named_as_far_as_there_is_room() -> None:
    config: dict[str, Any] = {"token": "12345678"}
    for n in range(20):
        config = {f"level-{n:02}-of-a-config": config}
    (path,) = warned(a_policy(key="k" * 63, middleware="acme/x", config=config), a_service("acme/x"))
    assert path == f"{AT}.{'k' * 63}.config.level-19-of-a-config"


def test_a_policy_that_kubectl_cannot_keep_whole_is_told_how_to_be_applied() -> None:
    def found(size: int) -> dict[str, str]:
        entries = {f"k{n}": an_entry_spec("acme/x", order=n, config={"a": "x" * size}) for n in range(4)}
        return warned(a_policy(entries=entries), a_service("acme/x"))

    assert found(60_000) == {}
    assert found(65_000) == {
        "spec": "is about 254 KiB: kubectl apply keeps at most 256 KiB; use kubectl apply --server-side"
    }


def test_many_endpoints_make_a_policy_large_too() -> None:
    endpoints = [{"host": f"{'h' * 60}.{'i' * 60}.{'j' * 60}.{n}.test", "ports": [443]} for n in range(256)]
    spec = {
        **_spec({"x": an_entry_spec("acme/x")}),
        "networkPolicies": {f"p{n}": {"endpoints": endpoints} for n in range(5)},
    }
    assert "--server-side" in warned(a_policy(spec=spec), a_service("acme/x"))["spec"]


def test_offline_a_binding_without_manifest_is_said_to_be_unchecked() -> None:
    settings = some_settings(knowledge=Knowledge.OFFLINE)
    assert "not checked" in warned(a_policy(key="x", middleware="acme/x"), settings=settings)[f"{AT}.x.middleware"]


def test_warnings_do_not_depend_on_the_order_of_keys() -> None:
    entries = {f"k{n}": an_entry_spec(f"acme/{n % 2}", order=n, include=["**.example.com"]) for n in range(8)}
    services = [a_service("acme/0", limit=100, timeout=timedelta(seconds=3)), a_service("acme/1", limit=200)]
    turned = dict(reversed(entries.items()))
    assert warned(a_policy(entries=entries), *services) == warned(a_policy(entries=turned), *services) != {}


def _endpoints(include: list[str], exclude: list[str]) -> dict[str, list[str]]:
    return {"include": include, "exclude": exclude}


def _spec(entries: dict[str, Any]) -> dict[str, Any]:
    return {"sandboxSelector": {}, "networkMiddlewares": entries}

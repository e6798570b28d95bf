"""A digest is of what a policy says: not of key order, number spelling, or how the file is laid out."""

import json
from random import Random
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.compiler.binding import bind
from supervisor_middleware.compiler.pipeline import compile_policy
from supervisor_middleware.sources.documents import read_documents
from tests.builders import a_builtin, a_policy, some_settings
from tests.compiler.world import EVERYONE_AGREES

numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False, width=32)
texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Co", "Cn")), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
hosts = st.sampled_from(["*.example.com", "**.b.test", "a.test", "API.test"])
entries = st.fixed_dictionaries(
    {
        "middleware": st.just("openshell/regex"),
        "endpoints": st.fixed_dictionaries(
            {"include": st.lists(hosts, min_size=1, max_size=3)},
            optional={"exclude": st.lists(st.just("x.c.test"), max_size=2)},
        ),
    },
    optional={
        "config": st.dictionaries(texts, values, max_size=4),
        "onError": st.sampled_from(["FailOpen", "FailClosed"]),
        "name": texts.filter(bool),
    },
)
endpoints = st.lists(
    st.fixed_dictionaries({"host": st.just("db.skip.test")}, optional={"tls": st.just("skip")}), max_size=3
)
specs = st.builds(
    lambda found, network, labels: {
        "sandboxSelector": {"matchLabels": labels},
        "networkMiddlewares": {f"k{n}": {**e, "order": n} for n, e in enumerate(found)},
        "networkPolicies": {f"p{n}": {"endpoints": e} for n, e in enumerate(network)},
    },
    st.lists(entries, max_size=3),
    st.lists(endpoints, max_size=3),
    st.dictionaries(st.sampled_from(["app", "tier", "team"]), st.sampled_from(["x", "y"])),
)


def digest_of(spec: Any) -> str:
    policy = a_policy(spec=spec)
    compiled = compile_policy(
        policy, bindings=bind((), [a_builtin()]), verdicts=EVERYONE_AGREES, settings=some_settings()
    )
    assert compiled.report.violations == ()
    return compiled.digest


def shuffled(value: Any, random: Random) -> Any:
    """The same with the keys of every object in another order."""
    if isinstance(value, dict):
        keys = list(value)
        random.shuffle(keys)
        return {key: shuffled(value[key], random) for key in keys}
    return [shuffled(item, random) for item in value] if isinstance(value, list) else value


def respelt(value: Any) -> Any:
    """The same with whole numbers as floats, and floats that are whole as integers."""
    if isinstance(value, dict):
        return {key: respelt(item) for key, item in value.items()}
    if isinstance(value, list):
        return [respelt(item) for item in value]
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return float(value)
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def in_configs(spec: Any, change: Any) -> Any:
    found = spec["networkMiddlewares"].items()
    changed = {k: {**e, "config": change(e["config"])} if "config" in e else e for k, e in found}
    return {**spec, "networkMiddlewares": changed}


def read(text: str) -> Any:
    parsed = read_documents(text.encode())
    assert parsed.problems == ()
    (document,) = parsed.documents
    return document.value


def dumped(value: Any, layout: dict[str, Any], *, quotes: str) -> str:
    """YAML whose texts are quoted: what a plain `y` means is not what this is about."""

    class Dumper(yaml.SafeDumper):
        pass

    Dumper.add_representer(
        str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style=quotes)
    )
    return str(yaml.dump(value, Dumper=Dumper, allow_unicode=True, **layout))


@given(specs, st.randoms())
def test_the_order_of_keys_is_not_in_it(spec: Any, random: Random) -> None:
    assert digest_of(shuffled(spec, random)) == digest_of(spec)


@given(specs)
def test_the_spelling_of_numbers_is_not_in_it(spec: Any) -> None:
    assert digest_of(in_configs(spec, respelt)) == digest_of(spec)


layouts = st.fixed_dictionaries(
    {
        "default_flow_style": st.sampled_from([True, False, None]),
        "indent": st.integers(1, 6),
        "sort_keys": st.booleans(),
        "width": st.sampled_from([20, 200]),
    }
)


@given(specs, layouts, st.sampled_from(["'", '"']))
def test_the_layout_of_yaml_is_not_in_it(spec: Any, layout: dict[str, Any], quotes: str) -> None:
    assert digest_of(read(dumped(spec, layout, quotes=quotes))) == digest_of(read(json.dumps(spec)))


def test_what_a_policy_says_is_in_it() -> None:
    spec = {
        "sandboxSelector": {},
        "networkMiddlewares": {
            "k": {"middleware": "openshell/regex", "config": {"a": 1}, "endpoints": {"include": ["a.test"]}}
        },
        "networkPolicies": {"p": {"endpoints": [{"host": "b.test", "tls": "skip"}]}},
    }
    others = [
        in_configs(spec, lambda _: {"a": "1"}),
        in_configs(spec, lambda _: {"a": True}),
        {**spec, "sandboxSelector": {"matchLabels": {"a": "b"}}},
        {**spec, "activationDeadline": "1s"},
        {**spec, "networkPolicies": {}},
    ]
    assert len({digest_of(s) for s in [spec, *others]}) == 1 + len(others)

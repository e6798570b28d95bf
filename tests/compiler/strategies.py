"""JSON as people and attackers write it: anything at all, and policies and registrations with random faults."""

from hypothesis import strategies as st

names = st.sampled_from(
    ["sandboxSelector", "networkMiddlewares", "middleware", "endpoints", "include", "exclude", "order", "config", "onError",
     "matchLabels", "matchExpressions", "key", "operator", "values", "name", "activationDeadline", "networkPolicies",
     "host", "tls", "protocol", "enforcement", "position", "namespaceSelector",
     "grpcEndpoint", "maxBodyBytes", "timeout", "caBundle", "caBundleRef", "serverName", "bindings", "allowInsecure",
     "registrationName", "clientAuthentication", "kind", "namespace"]
)  # fmt: skip
texts = st.text(st.characters(), max_size=6) | st.sampled_from(
    [
        "openshell/regex",
        "acme/redactor",
        "**",
        "*.example.com",
        "FailOpen",
        "skip",
        "audit",
        "graphql",
        "Last",
        "5s",
        "In",
        "Exists",
        "https://a.test",
        "http://[::1",
    ]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.just("\ud800")
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names | texts | st.just("\ud800"), inner, max_size=6),
    max_leaves=30,
)
endpoints = st.fixed_dictionaries(
    {}, optional={"include": st.lists(texts, max_size=34) | json_values, "exclude": json_values}
)
entries = st.fixed_dictionaries(
    {},
    optional={
        "middleware": texts,
        "order": st.integers(-1, 3) | json_values,
        "config": json_values,
        "onError": json_values,
        "endpoints": endpoints | json_values,
        "name": json_values,
        "nonsense": json_values,
    },
)
destinations = st.fixed_dictionaries(
    {},
    optional={
        "host": texts | json_values,
        "tls": st.just("skip") | json_values,
        "enforcement": st.just("audit") | json_values,
        "protocol": st.just("graphql") | json_values,
    },
)
nearly_network_policies = st.dictionaries(
    texts, st.fixed_dictionaries({"endpoints": st.lists(destinations, max_size=4) | json_values}), max_size=3
)
nearly_policies = st.fixed_dictionaries(
    {"sandboxSelector": st.just({}) | json_values},
    optional={
        "namespaceSelector": st.just({}) | json_values,
        "position": st.sampled_from(["First", "Last"]) | json_values,
        "networkMiddlewares": st.dictionaries(texts | st.just("\ud800") | names, entries | json_values, max_size=13),
        "activationDeadline": json_values,
        "networkPolicies": nearly_network_policies | json_values,
    },
)
nearly_registrations = st.fixed_dictionaries(
    {"grpcEndpoint": texts, "maxBodyBytes": st.just(1) | json_values},
    optional={
        "registrationName": json_values,
        "timeout": json_values,
        "tls": st.dictionaries(names, json_values, max_size=4) | json_values,
        "bindings": json_values,
        "allowInsecure": json_values,
        "clientAuthentication": json_values,
    },
)

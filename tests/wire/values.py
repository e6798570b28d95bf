"""Model values and bytes for the codec's tests: builders naming only what matters, and hypothesis strategies."""

from typing import Any, Final

from google.protobuf import empty_pb2
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import settings
from hypothesis import strategies as st

from supervisor_middleware.model.canonical import MAX_EXACT_INTEGER
from supervisor_middleware.model.evaluation import (
    Decision,
    Evaluation,
    ExistingHeader,
    Finding,
    Header,
    Process,
    RemoveHeader,
    RequestContext,
    Result,
    Target,
    WriteHeader,
)
from supervisor_middleware.model.manifest import Binding, Dialect, Manifest, Operation, Phase

REGISTRATION: Final = "acme-redactor"
BOTH: Final = tuple(Dialect)
# The machine's other work must not decide whether a property holds.
unhurried: Final = settings(deadline=None)


def fields(data: bytes) -> list[tuple[int, int, Any]]:
    """The top-level fields of an encoded message, by number: the order on the wire has no meaning."""
    found = UnknownFieldSet(empty_pb2.Empty.FromString(data))
    return sorted(
        ((f.field_number, f.wire_type, f.data) for f in (found[i] for i in range(len(found)))), key=lambda f: f[0]
    )


def a_binding(**changes: Any) -> Binding:
    values: dict[str, Any] = {
        "id": "acme/redactor",
        "operation": Operation.HTTP_REQUEST,
        "phase": Phase.PRE_CREDENTIALS,
        "max_body_bytes": 1024,
        "timeout": "500ms",
    }
    return Binding(**{**values, **changes})


def an_evaluation(**changes: Any) -> Evaluation:
    values: dict[str, Any] = {
        "binding": "acme/redactor",
        "context": RequestContext(request_id="r", sandbox_id="s"),
        "config": {},
        "target": Target(scheme="https", host="h", port=443, method="GET", path="/"),
        "headers": (),
        "body": b"",
    }
    return Evaluation(**{**values, **changes})


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
name = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
uint32 = st.integers(0, 2**32 - 1)

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_EXACT_INTEGER, MAX_EXACT_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)
json_objects: st.SearchStrategy[dict[str, Any]] = st.dictionaries(text, json_values, max_size=5)

limits = st.integers(0, MAX_EXACT_INTEGER)
bindings = st.builds(
    Binding,
    id=name,
    operation=st.sampled_from(Operation),
    phase=st.sampled_from(Phase),
    max_body_bytes=limits,
    timeout=text,
)
rfc0009_manifests = st.builds(
    Manifest,
    name=text,
    service_version=text,
    dialect=st.just(Dialect.RFC0009),
    bindings=st.lists(bindings, min_size=1, max_size=4).map(tuple),
)
released_manifests = st.builds(
    Manifest,
    name=text,
    service_version=text,
    dialect=st.just(Dialect.RELEASED),
    bindings=st.lists(
        st.builds(
            Binding,
            id=st.just(REGISTRATION),
            operation=st.sampled_from([Operation.HTTP_REQUEST, Operation.WEBSOCKET_MESSAGE]),
            phase=st.sampled_from(Phase),
            max_body_bytes=limits,
            timeout=text,
        ),
        min_size=1,
        max_size=4,
    ).map(tuple),
)

processes = st.builds(Process, binary=text, pid=uint32, ancestors=st.lists(text, max_size=3).map(tuple))
contexts = st.builds(RequestContext, request_id=text, sandbox_id=text, process=st.none() | processes)
targets = st.builds(Target, scheme=text, host=text, port=uint32, method=text, path=text, query=text)
header_lines = st.lists(st.builds(Header, text, text), max_size=5).map(tuple)
evaluations = st.builds(
    Evaluation,
    binding=name,
    context=contexts,
    config=json_objects,
    target=targets,
    headers=header_lines,
    body=st.binary(max_size=50),
)

mutations = st.lists(
    st.builds(WriteHeader, name=text, value=text, on_existing=st.sampled_from(ExistingHeader))
    | st.builds(RemoveHeader, name=text),
    max_size=4,
).map(tuple)
findings = st.builds(Finding, type=text, label=text, count=uint32, confidence=text, severity=text)
finding_lists = st.lists(findings, max_size=4).map(tuple)
metadata = st.dictionaries(text, text, max_size=4)
reason_codes = st.just("") | st.from_regex(r"[a-z][a-z0-9_]{0,63}", fullmatch=True)
results = st.builds(
    Result,
    decision=st.just(Decision.ALLOW),
    reason=text,
    reason_code=reason_codes,
    body=st.none() | st.binary(max_size=50),
    mutations=mutations,
    findings=finding_lists,
    metadata=metadata,
) | st.builds(
    Result,
    decision=st.just(Decision.DENY),
    reason=text,
    reason_code=reason_codes,
    findings=finding_lists,
    metadata=metadata,
)


def corrupted(valid: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Messages cut short, with bytes put in or changed, or followed by rubbish: nearer to valid than random bytes."""

    def damage(data: bytes, at: int, rubbish: bytes, removed: int) -> bytes:
        place = at % (len(data) + 1)
        return data[:place] + rubbish + data[place + removed :]

    return st.builds(
        damage, valid, st.integers(0, 10_000), st.binary(max_size=6), st.integers(0, 4) | st.just(10_000)
    )

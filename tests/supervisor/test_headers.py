import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.model.evaluation import (
    ExistingHeader,
    FailureCode,
    Header,
    HeaderMutation,
    RemoveHeader,
    WriteHeader,
)
from supervisor_middleware.model.limits import MAX_MUTATIONS
from supervisor_middleware.supervisor.headers import (
    PROTECTED_NAMES,
    apply,
    is_protected,
    nominated_by,
    validate,
    visible,
)
from supervisor_middleware.wire.result_limits import WRITE_NAMESPACE

NONE_NOMINATED: frozenset[str] = frozenset()


def write(suffix: str = "a", value: str = "v", *, on_existing: ExistingHeader = ExistingHeader.APPEND) -> WriteHeader:
    return WriteHeader(name=WRITE_NAMESPACE + suffix, value=value, on_existing=on_existing)


def lines(*pairs: tuple[str, str]) -> tuple[Header, ...]:
    return tuple(Header(name, value) for name, value in pairs)


def test_duplicates_and_order_of_visible_lines_are_kept() -> None:
    headers = lines(("accept", "a"), ("x-one", "1"), ("accept", "b"), ("x-api-key", "k"), ("set-cookie", "c"))
    assert visible(headers) == headers


@pytest.mark.parametrize(
    "name",
    [
        *sorted(PROTECTED_NAMES),
        "x-amz-security-token",
        "x-openshell-credential",
        "x-openshell-credential-id",
        ":authority",
        "Authorization",
        "X-Amz-Date",
    ],
)
def test_protected_header_is_hidden(name: str) -> None:
    assert is_protected(name)
    assert visible(lines(("accept", "a"), (name, "secret"))) == lines(("accept", "a"))


def test_names_nominated_by_any_connection_line_are_hidden() -> None:
    headers = lines(
        ("connection", "X-Hop , close,"),
        ("Connection", "x-other"),
        ("x-hop", "1"),
        ("X-Other", "2"),
        ("x-stays", "3"),
    )
    assert nominated_by(headers) == {"x-hop", "close", "x-other"}
    assert visible(headers) == lines(("x-stays", "3"))


@pytest.mark.parametrize(
    ("mutation", "code"),
    [
        (RemoveHeader(name=":path"), FailureCode.MUTATION_INVALID_NAME),
        (RemoveHeader(name="Authorization"), FailureCode.MUTATION_PROTECTED_HEADER),
        (
            WriteHeader(name="cookie", value="v", on_existing=ExistingHeader.SKIP),
            FailureCode.MUTATION_PROTECTED_HEADER,
        ),
        (RemoveHeader(name="X-Hop"), FailureCode.MUTATION_HOP_BY_HOP),
        (write("hop"), FailureCode.MUTATION_HOP_BY_HOP),
        (
            WriteHeader(name="x-api-key", value="v", on_existing=ExistingHeader.APPEND),
            FailureCode.MUTATION_NAMESPACE,
        ),
    ],
)
def test_invalid_mutation_names_the_rule_it_breaks(mutation: HeaderMutation, code: FailureCode) -> None:
    nominated = frozenset({"x-hop", WRITE_NAMESPACE + "hop"})
    assert validate((mutation,), nominated=nominated) is code


def test_a_name_is_judged_before_the_value() -> None:
    mutation = WriteHeader(name="host", value="\n", on_existing=ExistingHeader.APPEND)
    assert validate((mutation,), nominated=NONE_NOMINATED) is FailureCode.MUTATION_PROTECTED_HEADER


def test_one_invalid_mutation_spoils_all() -> None:
    assert validate((write(), RemoveHeader(name="host")), nominated=NONE_NOMINATED) is (
        FailureCode.MUTATION_PROTECTED_HEADER
    )


def test_accepted_mutations_have_lower_case_names_and_trimmed_values() -> None:
    given_ = (
        WriteHeader(name="X-OpenShell-Middleware-A", value=" \tv ", on_existing=ExistingHeader.SKIP),
        RemoveHeader(name="X-Api-Key"),
    )
    assert validate(given_, nominated=NONE_NOMINATED) == (
        WriteHeader(name="x-openshell-middleware-a", value="v", on_existing=ExistingHeader.SKIP),
        RemoveHeader(name="x-api-key"),
    )


def test_too_many_mutations_are_refused_as_one() -> None:
    mutations = (RemoveHeader(name="x"),) * (MAX_MUTATIONS + 1)
    assert validate(mutations, nominated=NONE_NOMINATED) is FailureCode.MUTATION_COUNT_OVER_CAPACITY


PRESENT = lines(("x-openshell-middleware-a", "old"), ("accept", "1"), ("x-openshell-middleware-a", "old too"))
ABSENT = lines(("accept", "1"))


@pytest.mark.parametrize(
    ("on_existing", "before", "after"),
    [
        (ExistingHeader.APPEND, ABSENT, (*ABSENT, Header("x-openshell-middleware-a", "v"))),
        (ExistingHeader.OVERWRITE, ABSENT, (*ABSENT, Header("x-openshell-middleware-a", "v"))),
        (ExistingHeader.SKIP, ABSENT, (*ABSENT, Header("x-openshell-middleware-a", "v"))),
        (ExistingHeader.APPEND, PRESENT, (*PRESENT, Header("x-openshell-middleware-a", "v"))),
        (ExistingHeader.OVERWRITE, PRESENT, (*ABSENT, Header("x-openshell-middleware-a", "v"))),
        (ExistingHeader.SKIP, PRESENT, PRESENT),
    ],
)
def test_write_by_mode(on_existing: ExistingHeader, before: tuple[Header, ...], after: tuple[Header, ...]) -> None:
    assert apply((write(on_existing=on_existing),), before) == after


def test_removal_takes_every_line_of_its_name_and_no_other() -> None:
    headers = lines(("x-api-key", "1"), ("accept", "a"), ("X-Api-Key", "2"))
    assert apply((RemoveHeader(name="x-api-key"),), headers) == lines(("accept", "a"))


def test_removing_an_absent_header_changes_nothing() -> None:
    assert apply((RemoveHeader(name="x-none"),), ABSENT) == ABSENT


def test_mutations_apply_in_the_order_given() -> None:
    mutations = (write(value="1"), RemoveHeader(name=WRITE_NAMESPACE + "a"), write(value="2"))
    assert apply(mutations, ()) == lines(("x-openshell-middleware-a", "2"))


NAMES = st.sampled_from(["host", "accept", "x-api-key", "x-hop", WRITE_NAMESPACE + "a", WRITE_NAMESPACE + "b"])
HEADERS = st.lists(st.builds(Header, NAMES, st.sampled_from(["1", "2"])), max_size=6).map(tuple)
MUTATIONS = st.lists(
    st.one_of(
        st.builds(RemoveHeader, name=NAMES),
        st.builds(WriteHeader, name=NAMES, value=st.just("new"), on_existing=st.sampled_from(ExistingHeader)),
    ),
    max_size=4,
).map(tuple)


@given(headers=HEADERS, mutations=MUTATIONS)
def test_valid_mutations_never_touch_a_hidden_line(
    headers: tuple[Header, ...], mutations: tuple[HeaderMutation, ...]
) -> None:
    headers = (*headers, Header("connection", "x-hop"))
    accepted = validate(mutations, nominated=nominated_by(headers))
    if isinstance(accepted, FailureCode):
        return
    hidden = [h for h in headers if h not in visible(headers)]
    after = apply(accepted, headers)
    assert [h for h in after if h not in visible(after)] == hidden
    # What upstream gets is what the last stage saw: applying to all lines and to the visible ones agree.
    assert visible(after) == apply(accepted, visible(headers))

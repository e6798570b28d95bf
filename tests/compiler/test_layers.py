"""Two tiers: whatever tenants write, the baseline's stages are all there, in their place and unchanged."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_middleware.compiler.binding import bind
from supervisor_middleware.compiler.composition import compose, selects
from supervisor_middleware.compiler.drafts import draft_policy
from supervisor_middleware.compiler.skipped import selector_of
from supervisor_middleware.model.evaluation import OnError
from supervisor_middleware.model.generation import MAX_SHARED_STAGES, Generation, Sealed, Stage, seal, unseal
from supervisor_middleware.model.limits import MAX_BASELINE_CONFIGS, MAX_STAGES, MAX_STREAM_MESSAGE_BYTES
from supervisor_middleware.model.revision import Entry, Position, Revision, Skip, Unresolved
from supervisor_middleware.model.sandbox import NAMESPACE_LABEL, Sandbox
from supervisor_middleware.model.snapshot import Stored
from supervisor_middleware.model.violation import Report
from supervisor_middleware.supervisor.activation import open_payload
from tests.builders import (
    NOW,
    REGEX,
    a_baseline,
    a_baseline_revision,
    a_policy,
    a_revision,
    a_sandbox,
    an_accepted_registration,
    an_entry,
    an_entry_spec,
    some_settings,
)

BINDINGS = bind([an_accepted_registration()], some_settings().builtins)
LABELS = {NAMESPACE_LABEL: "team-a"}
FIRST = a_baseline_revision(
    an_entry("guard", binding=REGEX, order=10, include=["**"], exclude=["db.example.com"]),
    an_entry("redact", order=20, include=["**.example.com"], exclude=["db.example.com"]),
    name="first",
)
LAST = a_baseline_revision(
    an_entry("archive", binding=REGEX, order=5, include=["api.example.com"], on_error=OnError.FAIL_OPEN),
    name="last",
    position=Position.LAST,
    created_at=NOW + timedelta(days=1),
)
BASELINE = (FIRST, LAST)
OLDER = NOW - timedelta(days=365)
HOSTS = ("api.example.com", "x.example.com", "db.example.com", "other.test", "localhost", "10.0.0.1", "[::1]")
HOSTILE = tuple(f"**.{c}.*.{c}*.*.*{c}.*.*.*.*.*.{c}.**" for c in "abcdefghijklmnop")


def composed(*revisions: Revision, sandbox: Sandbox | None = None) -> tuple[Generation, Report]:
    return compose(
        sandbox or a_sandbox(),
        revisions,
        namespace_labels=LABELS,
        bindings=BINDINGS,
        settings=some_settings(),
    )


def assert_the_baseline_holds(
    tenants: Sequence[Revision], *, baseline: Sequence[Revision] = BASELINE, sandbox: Sandbox | None = None
) -> None:
    """All of it, unchanged, first and last of what runs, and nobody is told that it conflicts with a tenant."""
    alone, told = composed(*baseline, sandbox=sandbox)
    together, told_with_tenants = composed(*tenants, *baseline, sandbox=sandbox)
    mine = [s for s in together.stages if _is_of_platform(s) and s.unresolved is not Unresolved.CONFLICTED]
    assert mine == [s for s in alone.stages if s.unresolved is not Unresolved.CONFLICTED]
    assert all(s.key.startswith("platform:") for s in mine)
    assert not any(s.key.startswith("platform:") for s in together.stages if not _is_of_platform(s))
    standing = [s for s in together.stages if s in mine or s.unresolved is None]
    last = [s for s in mine if s.policy in {r.policy.name for r in baseline if r.position is Position.LAST}]
    first = [s for s in mine if s not in last]
    between = [s for s in standing if s not in mine]
    assert standing == [*first, *between, *last]
    about_baseline = tuple(v for v in told_with_tenants.violations if v.subject.namespace is None)
    assert about_baseline == told.violations
    for host in HOSTS:
        _assert_no_weaker(alone.chain_for(host), together.chain_for(host))


def _assert_no_weaker(alone: Sequence[Stage], together: Sequence[Stage]) -> None:
    ran = [s for s in alone if s.unresolved is None]
    assert [s for s in together if s in ran] == ran
    if any(s.unresolved and s.on_error is OnError.FAIL_CLOSED for s in alone):
        assert any(s.unresolved and s.on_error is OnError.FAIL_CLOSED for s in together)


def _is_of_platform(stage: Stage) -> bool:
    return "/" not in stage.policy


def unaccepted(policy: Stored) -> Revision:
    found = draft_policy(policy)[0].as_unresolved()
    assert found is not None
    return found


def many(count: int) -> tuple[Entry, ...]:
    return tuple(an_entry(f"own-{n}", binding=REGEX, order=n, include=["**"]) for n in range(count))


# ------------------------------------------------------------------------------------------------------- attacks

ATTACKS: dict[str, Sequence[Revision]] = {
    "ten stages": [a_revision(*many(10), created_at=OLDER)],
    "ten policies of ten stages": [a_revision(*many(10), name=f"p{n}", created_at=OLDER) for n in range(10)],
    "the keys of the baseline": [
        a_revision(an_entry("guard", order=1), an_entry("archive", order=2), created_at=OLDER)
    ],
    "the orders of the baseline": [a_revision(*(an_entry(f"k{o}", order=o) for o in (5, 10, 20)), created_at=OLDER)],
    "the lowest and highest orders": [
        a_revision(an_entry("a", order=-(2**31)), an_entry("b", order=2**31 - 1), created_at=OLDER)
    ],
    "tls: skip on every host of the baseline": [
        replace(
            a_revision(name="skipping", created_at=OLDER),
            entries=(),
            skips=(Skip(path="spec.networkPolicies.all.endpoints[0]", host="**"),),
        )
    ],
    "a policy that was never accepted": [
        unaccepted(
            a_policy(entries={f"k{n}": {"endpoints": {"include": ["**"]}} for n in range(12)}, created_at=OLDER)
        )
    ],
    "keys that pass for the platform's": [
        unaccepted(
            a_policy(
                entries={k: an_entry_spec(REGEX, include=["**"]) for k in ("platform:guard", "first:platform:guard")},
                created_at=OLDER,
            )
        )
    ],
    "a tenant named like the baseline": [a_revision(an_entry("guard", order=10), name="first", created_at=OLDER)],
    "patterns without end": [a_revision(an_entry("hostile", include=HOSTILE), created_at=OLDER)],
    "skips without end": [
        replace(
            a_revision(an_entry("hostile", include=HOSTILE, exclude=HOSTILE[:8]), name="endless", created_at=OLDER),
            skips=tuple(Skip(path=f"spec.networkPolicies.p.endpoints[{n}]", host=h) for n, h in enumerate(HOSTILE)),
        )
    ],
    "hundreds of conflicted policies": [
        a_revision(
            *(an_entry(f"k{n}", binding=REGEX, order=n, on_error=list(OnError)[n % 2]) for n in range(10)),
            name=f"p{name}",
            created_at=OLDER,
        )
        for name in range(300)
    ],
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_baseline_stands_against(attack: str) -> None:
    assert_the_baseline_holds(ATTACKS[attack])


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_left_can_be_sent_and_run(attack: str) -> None:
    generation, _ = composed(*ATTACKS[attack], *BASELINE)
    sealed = seal(generation)
    assert unseal(sealed.payload, expected_digest=sealed.digest) == sealed
    assert len(sealed.payload) < MAX_STREAM_MESSAGE_BYTES
    assert len(generation.stages) <= MAX_STAGES + MAX_SHARED_STAGES
    assert sum(s.unresolved is None for s in generation.stages) <= MAX_STAGES
    assert len({(s.policy, s.key) for s in generation.stages}) == len(generation.stages), "keys are identities"


def test_all_attacks_at_once_change_nothing() -> None:
    assert_the_baseline_holds([r for attack in ATTACKS.values() for r in attack])


@pytest.mark.parametrize("labels", [{}, {"app": "x"}, {"middleware.openshell.io/sandbox": "false"}])
def test_no_label_of_a_pod_takes_it_out_of_the_baseline(labels: dict[str, str]) -> None:
    sandbox = a_sandbox(labels=labels)
    assert all(selects(r, sandbox, namespace_labels=LABELS) for r in BASELINE)
    assert_the_baseline_holds([], sandbox=sandbox)


def test_a_sandbox_label_does_not_count_as_the_namespaces() -> None:
    baseline = a_baseline_revision(an_entry(), labels={"stage": "prod"})
    pretender = a_sandbox(labels={"stage": "prod"})
    assert not selects(baseline, pretender, namespace_labels={"stage": "dev"})
    assert selects(baseline, a_sandbox(labels={"stage": "dev"}), namespace_labels={"stage": "prod"})


def test_a_tenant_older_than_the_baseline_gives_way_to_it() -> None:
    tenant = a_revision(*many(6), created_at=OLDER)
    before, _ = composed(tenant)
    assert sum(s.unresolved is None for s in before.stages) == 6
    five = a_baseline_revision(*(an_entry(f"b{n}", binding=REGEX, order=n) for n in range(MAX_BASELINE_CONFIGS)))
    after, told = composed(tenant, five)
    assert [s.unresolved for s in after.stages[:5]] == [None] * 5
    assert {s.unresolved for s in after.stages[5:]} == {Unresolved.CONFLICTED}
    assert {v.subject for v in told.violations} == {tenant.policy}


def test_a_never_accepted_policy_keeps_saying_so_where_it_also_conflicts() -> None:
    long = unaccepted(a_policy(entries={f"k{n:02}": an_entry_spec(REGEX, order=n) for n in range(11)}))
    generation, _ = composed(long)
    assert {s.unresolved for s in generation.stages} == {Unresolved.NEVER_ACCEPTED}


def test_a_key_of_any_length_is_shown_as_far_as_keys_go() -> None:
    generation, _ = composed(unaccepted(a_policy(entries={"K" * 100_000: an_entry_spec(REGEX)})))
    assert len(generation.payload()) < 2000


@pytest.mark.parametrize(
    "keys", [("x" * 64 + "a", "x" * 64 + "b"), ("a\x1b", "a\n"), ("\ud800", "\udfff"), ("0:a", "a", "1:0:a")]
)
def test_two_keys_that_are_shown_alike_stay_two_or_the_supervisor_would_keep_what_it_has(
    keys: tuple[str, ...],
) -> None:
    entries = {key: an_entry_spec(REGEX, order=order, name=key) for order, key in enumerate(keys)}
    spec = {"namespaceSelector": {}, "networkMiddlewares": entries}
    baselines = (unaccepted(replace(a_baseline(name), spec=spec)) for name in ("one", "two"))
    sealed = seal(composed(unaccepted(a_policy(entries=entries)), *baselines)[0])
    assert len(sealed.generation.stages) == 3 * len(keys)
    assert isinstance(open_payload(sealed.payload, expected_digest=sealed.digest), Sealed)
    assert all(f"{s.key}{s.label}".isprintable() for s in sealed.generation.stages)


def test_the_key_of_another_policy_is_told_without_what_a_terminal_would_obey() -> None:
    closed = unaccepted(a_policy("closed", entries={"a\x1b[31m\n::error::b": an_entry_spec(REGEX, include=["**"])}))
    skipping = replace(
        a_revision(), entries=(), skips=(Skip(path="spec.networkPolicies.p.endpoints[0]", host="a.b"),)
    )
    baseline = replace(FIRST, entries=(), skips=skipping.skips)
    _, told = composed(closed, skipping, baseline)
    assert told.violations
    assert all(v.message.isprintable() for v in told.violations)


# ---------------------------------------------------------------------------------------------------- properties

patterns = st.sampled_from(
    ["**", "*", "**.example.com", "*.example.com", "api.example.com", "db.*.com", "other.test"]
)
entries = st.builds(
    an_entry,
    key=st.sampled_from(["guard", "redact", "archive", "own", "more"]),
    binding=st.sampled_from([REGEX, "acme/redactor", "nobody/serves"]),
    order=st.sampled_from([-5, 0, 5, 10, 20, 30]),
    on_error=st.sampled_from(OnError),
    include=st.lists(patterns, min_size=1, max_size=3),
    exclude=st.lists(patterns, max_size=2),
)
skips = st.lists(patterns.map(lambda h: Skip(path="spec.networkPolicies.p.endpoints[0]", host=h)), max_size=2)


def _tenant(number: int, age: int, of: list[Entry], skipped: list[Skip], unresolved: Unresolved | None) -> Revision:
    made = a_revision(name=f"tenant-{number}", created_at=NOW + timedelta(days=age))
    made = replace(made, entries=tuple(of), skips=tuple(skipped))
    return made if unresolved is None else made.as_unresolved(unresolved)


tenants = st.lists(
    st.builds(
        _tenant,
        st.integers(0, 20),
        st.integers(-500, 500),
        st.lists(entries, max_size=10, unique_by=(lambda e: e.key, lambda e: e.order)),
        skips,
        st.sampled_from([None, None, Unresolved.NEVER_ACCEPTED]),
    ),
    max_size=6,
    unique_by=lambda r: r.uid,
)
baselines = st.lists(
    st.builds(
        lambda name, age, of, position, skipped: a_baseline_revision(
            *of,
            name=f"base-{name}",
            created_at=NOW + timedelta(days=age),
            position=position,
            skips=[s.host for s in skipped],
        ),
        st.integers(0, 5),
        st.integers(-5, 5),
        st.lists(entries, min_size=1, max_size=5, unique_by=(lambda e: e.key, lambda e: e.order)),
        st.sampled_from(Position),
        skips,
    ),
    max_size=3,
    unique_by=lambda r: r.uid,
)


@given(tenants, baselines)
def test_no_tenants_change_the_baseline(given_tenants: list[Revision], given_baselines: list[Revision]) -> None:
    assert_the_baseline_holds(given_tenants, baseline=given_baselines)


@given(tenants, baselines)
def test_no_host_of_a_fail_closed_entry_is_let_through(
    given_tenants: list[Revision], given_baselines: list[Revision]
) -> None:
    generation, _ = composed(*given_tenants, *given_baselines)
    for revision in (*given_tenants, *given_baselines):
        for entry in revision.entries:
            for host in HOSTS:
                if entry.on_error is OnError.FAIL_CLOSED and _covers(entry, host):
                    _assert_it_runs_or_closes(entry, generation.chain_for(host))


def _covers(entry: Entry, host: str) -> bool:
    return selector_of(entry.include, entry.exclude).selects(host)


def _assert_it_runs_or_closes(entry: Entry, chain: Sequence[Stage]) -> None:
    runs = any(s.unresolved is None and s.key.endswith(entry.key) and s.binding == entry.binding for s in chain)
    assert runs or any(s.unresolved is not None and s.on_error is OnError.FAIL_CLOSED for s in chain)


@given(tenants, baselines)
def test_what_comes_of_it_can_be_sent(given_tenants: list[Revision], given_baselines: list[Revision]) -> None:
    generation, _ = composed(*given_tenants, *given_baselines)
    sealed = seal(generation)
    assert unseal(sealed.payload, expected_digest=sealed.digest) == sealed
    assert len({(s.policy, s.key) for s in generation.stages}) == len(generation.stages)

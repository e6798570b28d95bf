"""The pure core: compiling policies and folding a chain. Each beside a floor measured in the same run."""

from dataclasses import replace
from datetime import timedelta
from functools import partial

from supervisor_middleware.compiler.binding import bind
from supervisor_middleware.compiler.composition import compose
from supervisor_middleware.compiler.drafts import draft_policy
from supervisor_middleware.compiler.pipeline import compile_policy
from supervisor_middleware.compiler.questions import questions
from supervisor_middleware.control.decisions import decide
from supervisor_middleware.control.judge import Judge
from supervisor_middleware.model.canonical import canonical
from supervisor_middleware.model.evaluation import Decision, Header, Result
from supervisor_middleware.model.generation import seal
from supervisor_middleware.model.snapshot import Snapshot
from supervisor_middleware.model.verdict import Accepted
from supervisor_middleware.registry.catalog import Catalog
from supervisor_middleware.supervisor.chain import Ask, begin, resume
from supervisor_middleware.supervisor.exchange import Request, Whole
from tests.benchmarks.figures import seconds_each, show
from tests.builders import NOW, REGEX, a_policy, a_sandbox, an_entry_spec, some_settings
from tests.supervisor.builders import CONTEXT, stage, target

CONFIGS = 5
NO_TIME = timedelta(0)
STAGES = (1, 10)


async def run() -> None:
    """Compile one policy of five configs; compose and seal; fold chains of one and of ten stages."""
    entries = {
        f"config-{i}": an_entry_spec(REGEX, include=(f"api{i}.example.com", "**.example.org"), order=i)
        for i in range(CONFIGS)
    }
    policy = a_policy(spec={"sandboxSelector": {}, "networkMiddlewares": entries})
    settings = some_settings()
    bindings = bind((), settings.builtins)
    draft, _ = draft_policy(policy)
    verdicts = {q.key: Accepted() for q in questions(draft, bindings)}

    def compile_it() -> object:
        return compile_policy(policy, bindings=bindings, verdicts=verdicts, settings=settings)

    floor = seconds_each(lambda: canonical(policy.spec), times=2000)
    compiled = seconds_each(compile_it, times=500)
    show("compile_policy_of_5", compiled * 1e6, "us")
    show("compile_policy_of_5_over_canonical_json", compiled / floor, "ratio")
    revision = compile_policy(policy, bindings=bindings, verdicts=verdicts, settings=settings).revision
    if revision is None:
        raise AssertionError("the benchmark's policy must compile")

    def compose_it() -> object:
        generation, _ = compose(a_sandbox(), (revision,), namespace_labels={}, bindings=bindings, settings=settings)
        return seal(generation)

    show("compose_and_seal_generation", seconds_each(compose_it, times=500) * 1e6, "us")
    _passes()
    for count in STAGES:
        show(f"fold_chain_of_{count}", seconds_each(partial(_fold, count), times=500) * 1e6, "us")


def _passes() -> None:
    """A control loop's decision over 20 policies at their limits: the first pass, and one in which nothing changed."""
    config = {"terms": [f"term-{i:05d}" for i in range(4000)], "action": "redact"}
    entries = {f"config-{i}": an_entry_spec(REGEX, order=i, config=config) for i in range(10)}
    spec = {"sandboxSelector": {}, "networkMiddlewares": entries}
    snapshot = Snapshot(policies=tuple(replace(a_policy(spec=spec), uid=f"uid-{i}") for i in range(20)))
    judge, catalog = Judge(some_settings()), Catalog()
    for policy in decide(snapshot, catalog, judge=Judge(some_settings())).policies:
        for question in policy.questions:
            catalog.decided(question.key, Accepted(), now=NOW)
    first = seconds_each(lambda: decide(snapshot, catalog, judge=Judge(some_settings())), times=1)
    decide(snapshot, catalog, judge=judge)
    again = seconds_each(lambda: decide(snapshot, catalog, judge=judge), times=5)
    show("decide_20_policies_at_limits_first", first * 1e3, "ms")
    show("decide_20_policies_at_limits_again", again * 1e3, "ms")
    show("decide_again_over_first", again / first, "ratio")


def _fold(count: int) -> None:
    headers = tuple(Header(f"x-header-{i}", "value") for i in range(20))
    request = Request(context=CONTEXT, target=target(), headers=headers, body=Whole(b"x" * 1024))
    step = begin(tuple(stage(f"stage-{i}") for i in range(count)), request)
    while isinstance(step, Ask):
        step = resume(step, Result(decision=Decision.ALLOW), latency=NO_TIME)

"""The pure core: compiling policies and folding a chain. Each beside a floor measured in the same run."""

from datetime import timedelta
from functools import partial

from supervisor_middleware.compiler.binding import bind
from supervisor_middleware.compiler.composition import compose
from supervisor_middleware.compiler.drafts import draft_policy
from supervisor_middleware.compiler.pipeline import compile_policy
from supervisor_middleware.compiler.questions import questions
from supervisor_middleware.model.canonical import canonical
from supervisor_middleware.model.evaluation import Decision, Header, Result
from supervisor_middleware.model.generation import seal
from supervisor_middleware.model.verdict import Accepted
from supervisor_middleware.supervisor.chain import Ask, begin, resume
from supervisor_middleware.supervisor.exchange import Request, Whole
from tests.benchmarks.figures import seconds_each, show
from tests.builders import REGEX, a_policy, a_sandbox, an_entry_spec, some_settings
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
        generation, _ = compose(a_sandbox(), (revision,), bindings=bindings, settings=settings)
        return seal(generation)

    show("compose_and_seal_generation", seconds_each(compose_it, times=500) * 1e6, "us")
    for count in STAGES:
        show(f"fold_chain_of_{count}", seconds_each(partial(_fold, count), times=500) * 1e6, "us")


def _fold(count: int) -> None:
    headers = tuple(Header(f"x-header-{i}", "value") for i in range(20))
    request = Request(context=CONTEXT, target=target(), headers=headers, body=Whole(b"x" * 1024))
    step = begin(tuple(stage(f"stage-{i}") for i in range(count)), request)
    while isinstance(step, Ask):
        step = resume(step, Result(decision=Decision.ALLOW), latency=NO_TIME)

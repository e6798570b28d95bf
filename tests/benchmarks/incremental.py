"""One change among many policies: what it costs, and that the others cost nothing.

A cluster of N policies of five configs, one sandbox each, a hundred to a namespace. One policy is edited again and
again: read, compiled, composed and sealed. Beside it a whole decision pass, which glances at every policy.
"""

from dataclasses import replace
from typing import Final

from supervisor_middleware.control.decisions import Decisions, decide
from supervisor_middleware.control.judge import Judge
from supervisor_middleware.control.rollout import Composer, Rollout
from supervisor_middleware.model.revision import Revision
from supervisor_middleware.model.sandbox import Sandbox
from supervisor_middleware.model.snapshot import Snapshot, Stored
from supervisor_middleware.model.verdict import Accepted
from supervisor_middleware.registry.catalog import Catalog
from tests.benchmarks.figures import processor_seconds_each, show
from tests.builders import NOW, REGEX, a_policy, a_sandbox, an_entry_spec, some_settings

SIZES: Final = (100, 10_000)
CONFIGS: Final = 5
PER_NAMESPACE: Final = 100
EDITS: Final = 40


class _World:
    """A control loop's own parts over a snapshot of `count` policies."""

    def __init__(self, count: int) -> None:
        self.count, self.edits = count, 0
        names = [f"namespace-{i // PER_NAMESPACE}" for i in range(count)]
        self.policies = [_policy(i, namespace) for i, namespace in enumerate(names)]
        self.sandboxes = tuple(_sandbox(i, namespace) for i, namespace in enumerate(names))
        self.namespaces = {name: {"kubernetes.io/metadata.name": name} for name in names}
        self.judge, self.catalog, self.composer = Judge(some_settings()), Catalog(), Composer(some_settings())
        for question in (q for p in self.decide().policies for q in p.questions):
            self.catalog.decided(question.key, Accepted(), now=NOW)
        self.decisions = self.decide()
        self.revisions = {p.stored.uid: _revision(p.fresh) for p in self.decisions.policies}
        self.roll_out()

    def decide(self) -> Decisions:
        snapshot = Snapshot(policies=tuple(self.policies), sandboxes=self.sandboxes, namespaces=self.namespaces)
        return decide(snapshot, self.catalog, judge=self.judge)

    def roll_out(self) -> Rollout:
        rollout = self.composer.roll_out(
            self.sandboxes,
            tuple(self.revisions.values()),
            namespaces=self.namespaces,
            bindings=self.decisions.registry.bindings,
        )
        self.composer.published()
        return rollout

    def edit(self) -> Stored:
        self.edits += 1
        number = self.count // 2
        edited = _policy(number, f"namespace-{number // PER_NAMESPACE}", edit=self.edits)
        self.policies[number] = edited
        return edited

    def recompile(self) -> None:
        """What the change itself needs: one policy judged, the sandboxes it selects composed and sealed."""
        stored = self.edit()
        around = self.judge.around(self.decisions.registry, self.catalog)
        decision = self.judge.decide(stored, self.catalog, around=around, accepted=None)
        self.composer.replace(_revision(decision.fresh), bindings=around.bindings)
        self.composer.published()

    def whole_pass(self) -> None:
        """The same within a pass over everything."""
        stored = self.edit()
        decisions = self.decide()
        self.revisions[stored.uid] = _revision(next(p.fresh for p in decisions.policies if p.stored is stored))
        self.roll_out()


async def run() -> None:
    """The same edit in a small and in a large cluster."""
    changes: dict[int, float] = {}
    for count in SIZES:
        world = _World(count)
        before, compiled = world.composer.compositions, world.judge.compilations
        changes[count] = processor_seconds_each(world.recompile, times=EDITS)
        show(f"recompile_one_of_{count}", changes[count] * 1e3, "ms")
        edits = world.edits
        show(f"recompile_one_of_{count}_compilations", (world.judge.compilations - compiled) / edits, "each")
        show(f"recompile_one_of_{count}_compositions", (world.composer.compositions - before) / edits, "each")
        show(f"pass_over_{count}_one_changed", processor_seconds_each(world.whole_pass, times=10) * 1e3, "ms")
    show("recompile_one_large_over_small", changes[SIZES[1]] / changes[SIZES[0]], "ratio")


def _policy(number: int, namespace: str, *, edit: int = 0) -> Stored:
    entries = {
        f"config-{i}": an_entry_spec(
            REGEX, include=(f"api{i}.example.com", "**.example.org"), order=i * 10, config={"mode": "redact"}
        )
        for i in range(CONFIGS)
    }
    entries["config-0"]["order"] = -edit
    spec = {"sandboxSelector": {"matchLabels": {"app": f"app-{number}"}}, "networkMiddlewares": entries}
    return replace(a_policy(f"policy-{number}", namespace=namespace, spec=spec), generation=edit + 1)


def _sandbox(number: int, namespace: str) -> Sandbox:
    return a_sandbox(f"sandbox-{number}", namespace=namespace, labels={"app": f"app-{number}"})


def _revision(found: Revision | None) -> Revision:
    if found is None:
        raise AssertionError("the benchmark's policies must compile")
    return found

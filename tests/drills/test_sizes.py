"""A generation at the limits of the contract is served as any other; one beyond them changes nothing."""

from functools import partial
from typing import Any, Final

import yaml

from supervisor_middleware.model.limits import KIB, MAX_CONFIG_BYTES, MAX_REVISION_BYTES, MAX_STAGES
from tests.apps.rig import probe
from tests.drills.drill import KILLED, Drill, a_policy

_ESCAPED: Final = "\x01"
"""One byte in a service's config, six in the canonical form: a policy reaches its limit before its configs do."""


def _of_ten(mark: int, *, bytes_each: int) -> dict[str, Any]:
    """Ten stages, two of them for our host, whose fillers have so many bytes in the canonical form."""
    filler = _ESCAPED * (bytes_each // 6)
    policy = a_policy(mark, filler=filler)
    stages = policy["spec"]["networkMiddlewares"]
    for order in range(len(stages) + 1, MAX_STAGES + 1):
        stages[f"other-{order}"] = {
            "middleware": "drill/first",
            "order": order,
            "config": {"mark": str(mark), "filler": filler},
            "endpoints": {"include": ["**.example.org"]},
        }
    return policy


_LARGEST: Final = partial(_of_ten, bytes_each=(MAX_REVISION_BYTES - 6 * KIB) // MAX_STAGES)
_TOO_LARGE: Final = {
    "spec": partial(_of_ten, bytes_each=MAX_REVISION_BYTES // MAX_STAGES),
    "spec.networkMiddlewares.first.config": partial(a_policy, filler="x" * MAX_CONFIG_BYTES),
}
"""By what is at fault."""


def test_the_largest_generation_is_served_and_outlives_everybody_and_a_larger_one_is_refused(drill: Drill) -> None:
    drill.start()
    with drill.load() as load:
        drill.await_served(load)
        drill.roll(load, _LARGEST)
        drill.roll(load, _LARGEST)
        drill.until("its status says so", lambda: drill.rig.accepted()[0] == drill.mark and drill.rig.is_programmed())
        assert _kept_bytes(drill) > MAX_REVISION_BYTES - 6 * KIB

        accepted = drill.rig.accepted()
        for path, policy in _TOO_LARGE.items():
            drill.rig.write("policy.yaml", yaml.safe_dump(policy(drill.mark + 1)))
            drill.until("it is refused", partial(_is_too_large, drill, path))
            assert drill.rig.accepted() == accepted

        drill.rig.control.kill()
        drill.agent.process.kill()
        drill.supervisor_was_killed(load)
        drill.agent.process.start()
        drill.until("it serves what it kept", lambda: probe(drill.agent.health, "/readyz")[0] == 200)
        drill.await_answers(load, 10)
        assert load.newest() == str(drill.mark)
    drill.account(load, refused=KILLED)


def _is_too_large(drill: Drill, path: str) -> bool:
    return any((v["path"], v["reason"]) == (path, "TooLarge") for v in drill.rig.status()["violations"])


def _kept_bytes(drill: Drill) -> int:
    return (drill.agent.folder / "state" / "generation" / "last-known-good").stat().st_size

"""One line a figure: `name value unit`."""

import math
import statistics
import time
from collections.abc import Callable, Sequence


def show(name: str, value: float, unit: str) -> None:
    """Print a figure."""
    print(f"{name} {value:.4g} {unit}", flush=True)  # noqa: T201 - the output


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of `values` do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def seconds_each(work: Callable[[], object], *, times: int) -> float:
    """How long `work` takes, on average, after a warm-up."""
    for _ in range(max(1, times // 10)):
        work()
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times


def processor_seconds_each(work: Callable[[], object], *, times: int) -> float:
    """The median of what `work` costs in this process, whatever else the machine does; after a warm-up."""
    work()
    costs: list[float] = []
    for _ in range(times):
        began = time.process_time()
        work()
        costs.append(time.process_time() - began)
    return statistics.median(costs)

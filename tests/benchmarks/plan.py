"""A plan of 10⁹ rows: how long it takes to begin, to find a step anywhere, and what memory it holds.

    OMP_NUM_THREADS=1 python -m pytest -m benchmark -s tests/benchmarks/plan.py

Twenty datasets of 5 · 10⁷ rows each, three epochs, every schedule, in batches of 256 and of 16,384. Beside it
the same order as an index list, which is what samplers elsewhere hold: for 10⁷ rows, as 10⁹ would take 16 GB.

On two busy cores of a shared machine (CPU time to begin; median wall time of 200 random steps):

| schedule | to begin, 256 | a step, 256 | to begin, 16,384 | a step, 16,384 | memory, 256 and 16,384 |
|---|---|---|---|---|---|
| `dataset_sequential` | 7 ms | 0.3 ms | 37 ms | 2.4 ms | 0.07 MB, 1.4 MB |
| `round_robin` | 8 ms | 0.4 ms | 42 ms | 6.2 ms | 0.07 MB, 1.4 MB |
| `batch_shuffle` | 12 ms | 0.7 ms | 34 ms | 2.0 ms | 0.07 MB, 1.4 MB |
| `temperature` | 7 ms | 0.6 ms | 46 ms | 4.6 ms | 0.06 MB, 1.4 MB |
| `two_stage` | 12 ms | 0.7 ms | 49 ms | 6.3 ms | 0.09 MB, 1.5 MB |
| `bagging` of 0.6, then `batch_shuffle` | 17 ms | 1.0 ms | 84 ms | 8.0 ms | 0.07 MB, 1.5 MB |
| an index list of 10⁷ rows | 733 ms | | | | 80 MB |

Beginning includes the fingerprint, which hashes 16 batches; a step's time is the permutation's arithmetic.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc

import numpy as np
import pytest
from emberge import DatasetInfo, PerDataset, Sampler, random_bits
from emberge.training.plan.batch_plan import BatchPlan
from emberge_boom import Bagging
from emberge_train.samplers import samplers

pytestmark = pytest.mark.benchmark

ROWS, SETS = 10**9, 20
TASKS = ("retrieval", "sts", "classification", "clustering", "reranking")
ACCESSES = 200


def _pool() -> dict[DatasetInfo, range]:
    each = ROWS // SETS
    infos = [DatasetInfo(f"set-{i}", TASKS[i % len(TASKS)], each) for i in range(SETS)]  # type: ignore[arg-type]
    return {info: range(each) for info in infos}


def _plan(sampler: Sampler, *before: Sampler) -> tuple[BatchPlan, float]:
    started = time.process_time()
    plan = BatchPlan(_pool(), (*before, sampler), seed=1, epochs=3)
    return plan, time.process_time() - started


def _access(plan: BatchPlan) -> float:
    """The median seconds that a step at a random place takes."""
    taken = []
    for place in random_bits(ACCESSES, 5) % np.uint64(plan.steps):
        started = time.perf_counter()
        plan[int(place)]
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


@pytest.mark.parametrize("name", [*sorted(samplers()), "bagging"])
@pytest.mark.parametrize("size", [256, 16384])
def test_a_billion_rows(name: str, size: int) -> None:
    before = (Bagging(ratio=0.6),) if name == "bagging" else ()
    kind = samplers()["batch_shuffle" if name == "bagging" else name]
    sampler = kind(batch_size=PerDataset(default=size))
    _plan(sampler, *before)  # imports
    plan, seconds = _plan(sampler, *before)
    per_step = _access(plan)
    tracemalloc.start()
    plan, _ = _plan(sampler, *before)
    _access(plan)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(
        f"\n{name:>20}, batches of {size:>6,}: {plan.steps:>10,} steps, begun in {seconds * 1e3:6.1f} ms, "
        f"a step anywhere in {per_step * 1e3:6.3f} ms, at most {peak / 1e6:6.2f} MB"
    )
    assert seconds < 2
    assert per_step < 0.1
    assert peak < 30e6


def test_an_index_list_of_a_hundredth_of_them() -> None:
    started = time.process_time()
    order = np.random.default_rng(1).permutation(ROWS // 100)
    print(
        f"\n       an index list of {len(order):,} rows: begun in "
        f"{(time.process_time() - started) * 1e3:.0f} ms, holds {order.nbytes / 1e6:.0f} MB"
    )
    assert order.nbytes == 8 * len(order)

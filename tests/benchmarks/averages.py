"""What an average of the trajectory adds to a training step: CPU time with it and without.

    OMP_NUM_THREADS=1 python -m pytest -m benchmark -s tests/benchmarks/averages.py

all-MiniLM-L6-v2, float32, batches of 32 questions and passages of squad, 64 tokens at most. Two trainings run
the same batches and average every second model, one after even steps and one after odd ones. So each batch is
timed with an update of the mean and without, beside neighbours of the other kind, whatever else the machine
does. Printed are medians of CPU seconds a step over all rounds, the median of the ratios of equal steps of a
round, and the update of the mean alone, which is the same for any batch.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from gzip import open as open_gzip
from pathlib import Path

import pytest
import torch
from emberge import Example, PerDataset
from emberge.training import Averaging, FitOptions
from emberge.training.loop.averages import TrajectoryMean
from emberge_encoder import TextEncoder
from emberge_train import BatchShuffle, InfoNCE

from tests.support import tiny
from tests.support.fitting import run_fit
from tests.support.training_data import InMemory, dataset

ROUNDS, STEPS, BATCH, LENGTH = 6, 12, 32, 64
UPDATES = 20
LIMIT = 0.03


def _pairs(data: Path) -> InMemory:
    with open_gzip(data / "train/squad.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in itertools.islice(file, (STEPS + 1) * BATCH)]
    return dataset("squad", "retrieval", [Example(row["query"], (row["pos"][0],)) for row in rows])


def _time_steps(pairs: InMemory, root: Path, steps: int) -> list[float]:
    """CPU seconds of each step after the second; the last one and every second before it have an update."""
    ends: list[float] = []

    def progress(done: int, total: int, unit: str, note: str = "") -> None:
        if unit == "steps":
            ends.append(time.process_time())

    run_fit(
        backbone=TextEncoder(),
        checkpoint=tiny.minilm(),
        datasets=[pairs],
        sampler=(BatchShuffle(batch_size=PerDataset(default=BATCH)),),
        losses=PerDataset(default=(InfoNCE(temperature=0.05),)),
        options=FitOptions(
            max_length=PerDataset(default=LENGTH),
            max_steps=steps,
            schedule="constant",
            precision="float32",
            token_budget=2048,
            save_steps=1000,
            average=Averaging(share=1.0, every=2),
        ),
        folder=None,
        work=root,
        progress=progress,
        seed=0,
    )
    # The first two steps are left out: in one of them the mean is copied.
    return [end - begin for begin, end in itertools.pairwise(ends)][1:]


def _time_update() -> float:
    """Median CPU seconds of one update of the mean of all weights."""
    encoder = TextEncoder().load(tiny.minilm(), device="cpu", dtype="float32")
    parameters = dict(encoder.module.named_parameters())
    mean = TrajectoryMean(Averaging(share=1.0), UPDATES, parameters, lambda: None)
    times = []
    for step in range(1, UPDATES + 1):
        begin = time.process_time()
        mean.add(step)
        times.append(time.process_time() - begin)
    return statistics.median(times[1:])


@pytest.mark.benchmark
def test_a_step_with_an_average_beside_one_without(shared_data: Path, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        pairs = _pairs(shared_data)
        plain: list[float] = []
        averaged: list[float] = []
        for number in range(ROUNDS):
            even, odd = (
                _time_steps(pairs, tmp_path / f"{number} {steps}", steps)
                for steps in (STEPS, STEPS + 1)
            )
            for step, times in enumerate(zip(even, odd, strict=False), 3):
                averaged.append(times[step % 2])
                plain.append(times[1 - step % 2])
        update = _time_update()
    finally:
        torch.set_num_threads(threads)
    step, step_averaged = statistics.median(plain), statistics.median(averaged)
    ratio = statistics.median(b / a for a, b in zip(plain, averaged, strict=True))
    print(
        f"\n{step:.3f} s a step, {step_averaged:.3f} s with an average; the same steps take "
        f"{ratio:.3f} times as long; an update alone {update:.4f} s, {update / step:.2%} of a step"
    )
    assert update / step < LIMIT

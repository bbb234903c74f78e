"""What the training of a merge's members costs against one training on everything, in BOOM's numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import TensorRef
from emberge.contracts import Artifact, Model, TrainingCost, TrainingWork, UsedRows
from emberge_merge.steps.artifacts import compute_training_cost, find_trainings
from emberge_merge.steps.merge_options import ModelEntry


def train(**datasets: tuple[int, int]) -> TrainingWork:
    return TrainingWork(
        datasets={name: UsedRows(rows=r, of=n) for name, (r, n) in datasets.items()}
    )


# The bag sets of BOOM's Table 6 (arXiv:2602.05787) and what the paper says that they cost.
@pytest.mark.parametrize(
    ("ratios", "times"),
    [
        ([0.5, 0.5], 1.0),
        ([0.6, 0.8], 1.4),
        ([0.2, 0.4, 0.6, 0.8], 2.0),
        ([0.2, 0.4, 0.6, 0.8, 1.0], 3.0),
    ],
)
def test_the_training_cost_of_the_papers_bags_is_the_papers(
    ratios: list[float], times: float
) -> None:
    trainings = {
        f"bag {number}": train(find=(round(100 * ratio), 100), alike=(round(40 * ratio), 40))
        for number, ratio in enumerate(ratios)
    }
    assert compute_training_cost(trainings) == TrainingCost(times, round(140 * times), 140)


def test_an_update_costs_its_new_rows_and_the_core() -> None:
    """(|D′| + k|D|) / |D ∪ D′| with 40 new rows, 100 old ones and k = 0.4; unknown if a part is."""
    old, update = train(find=(100, 100)), train(find=(40, 100), alike=(40, 40))
    for trainings, rows in ({"update": update}, 80), ({"old": old, "update": update}, 180):
        assert compute_training_cost(trainings) == TrainingCost(round(rows / 140, 6), rows, 140)
    assert compute_training_cost({"old": old, "adapted": train()}) is None
    assert compute_training_cost({}) is None
    one, other = (Artifact("model", trainings={"m": x}, origin="merged") for x in (old, update))
    members = [
        (ModelEntry(model=TensorRef(text)), Model(text, Path(), "", artifact))
        for text, artifact in (("./boom", one), ("$new", other), ("./base", None))
    ]
    assert find_trainings(members) == {"./boom/m": old, "m": update}

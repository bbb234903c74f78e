"""What the training of a merge's members costs against one training on everything, in BOOM's numbers."""

from __future__ import annotations

import pytest
from emberge_merge.steps.artifacts import training_cost


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
def test_the_papers_bags_cost_what_the_paper_says(ratios: list[float], times: float) -> None:
    trainings = {
        f"bag {number}": {
            "datasets": {
                "find": {"rows": round(100 * ratio), "of": 100},
                "alike": {"rows": round(40 * ratio), "of": 40},
            }
        }
        for number, ratio in enumerate(ratios)
    }
    cost = training_cost(trainings)
    assert (cost["times"], cost["rows"], cost["of"]) == (times, round(140 * times), 140)
    assert sum(cost["members"].values()) == pytest.approx(times)


def test_an_update_costs_its_new_rows_and_the_core() -> None:
    """(|D′| + k|D|) / |D ∪ D′| with 40 new rows, 100 old ones and k = 0.4; unknown if a part is."""
    old = {"datasets": {"find": {"rows": 100, "of": 100}}}
    update = {"datasets": {"find": {"rows": 40, "of": 100}, "alike": {"rows": 40, "of": 40}}}
    assert training_cost({"update": update})["times"] == pytest.approx(80 / 140, abs=1e-6)
    assert training_cost({"old": old, "update": update})["times"] == pytest.approx(
        180 / 140, abs=1e-6
    )
    assert training_cost({"old": old, "adapted": {}}) == {}

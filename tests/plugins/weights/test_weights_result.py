"""The result of a search from given scores: its facts, and its figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import Model
from emberge_weights.candidates import list_fixed_candidates
from emberge_weights.real_merges import RealMerges
from emberge_weights.search import ChosenWeighting, HeldOut, Search
from emberge_weights.search_result import SearchResult, describe_conclusion, draw_figure
from emberge_weights.unit_scores import UnitScores

WEIGHTS = list_fixed_candidates(2, True)
# What each of two models and their base scores on four units.
IN_DATA = np.array([[0.8, 0.6, 0.7, 0.9], [0.4, 0.5, 0.2, 0.5], [0.1, 0.3, 0.2, 0.2]])
REAL = np.array([0.01, 0.03, -0.02, 0.01])


def rounded(value: Any) -> Any:
    """Return plain values with six digits of each number."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 6) if isinstance(value, float) else value


def scores(name: str, values: Any) -> UnitScores:
    return UnitScores(name, "mean", "query", np.asarray(values, np.float32))


def searched(clear: bool = True) -> Search:
    gain = HeldOut(0.125, 0.02 if clear else 0.25)
    return Search(
        WEIGHTS, [scores("asked", WEIGHTS @ IN_DATA)], ChosenWeighting(1 if clear else 0, gain)
    )


def merged() -> RealMerges:
    """Real merges: equal weights, and the first model alone."""
    return RealMerges([0, 1], [scores("asked", WEIGHTS[:2] @ IN_DATA + REAL)])


MODELS = [
    Model("a", Path("a"), "fa"),
    Model("b", Path("b"), "fb"),
    Model("base", Path("base"), "f0"),
]


def plain(difference: float, low: float, high: float) -> dict[str, float]:
    return {"difference": difference, "low": low, "high": high}


MEMBERS = [
    {"name": "a", "weight": 1.0, "alone": 0.75},
    {"name": "b", "weight": 0.0, "alone": 0.4},
    {"name": "base", "weight": 0.0, "alone": 0.2},
]
MERGES = [
    {"weights": {"a": 0.5, "b": 0.5, "base": 0.0}, "predicted": 0.575, "measured": 0.5825},
    {"weights": {"a": 1.0, "b": 0.0, "base": 0.0}, "predicted": 0.75, "measured": 0.7575},
]


def result_of(search: Search) -> SearchResult:
    return SearchResult(MODELS, search, merged())


def test_facts_have_foretold_and_real_scores() -> None:
    facts = rounded(result_of(searched()).to_facts())
    over_equal = facts.pop("over_equal")
    assert over_equal["difference"] == pytest.approx(0.175, abs=1e-6)
    assert over_equal["high"] - over_equal["low"] == pytest.approx(
        2 * 1.96 * np.std(IN_DATA[0] - IN_DATA[1]) / 2 / 3**0.5, abs=1e-5
    )
    assert facts == {
        "gain": plain(0.125, 0.0858, 0.1642),
        "clear": True,
        "over_base": None,
        "candidates": 13,
        "members": MEMBERS,
        "merges": MERGES,
    }
    unclear = rounded(result_of(searched(clear=False)).to_facts())
    assert unclear["over_equal"] == plain(0, 0, 0)
    assert [one["weight"] for one in unclear["members"]] == [0.5, 0.5, 0.0]


def test_the_figure_has_the_conclusion_the_merges_and_the_members() -> None:
    figure = draw_figure(result_of(searched()).to_facts())
    assert figure.caption == (
        "Weights chosen among 13 on half of the queries gain +12.50 [+8.58, +16.42] points over equal "
        "weights on the other half: weights were chosen. Merged for real, they gain +17.50 [+9.01, +25.99] "
        "on all queries."
    )
    drawn, table = figure.heat_map, figure.table
    assert drawn is not None
    assert table is not None
    assert drawn.rows == ["predicted 57.50, measured 58.25", "predicted 75.00, measured 75.75"]
    assert (drawn.columns, drawn.values) == (["a", "b", "base"], [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    assert table.rows[1] == ["b", "0.000", "40.00"]


def test_the_conclusion_says_which_weights_stay() -> None:
    found = searched(clear=False)
    text = describe_conclusion(result_of(found).to_facts())
    assert text.endswith("that is no more than chance, so the equal weights stay.")
    for error, words in ((0.02, "base's weight is 0.45."), (0.001, "so the equal weights stay.")):
        choice = replace(found.choice, over_base=HeldOut(0.01, error))
        facts = result_of(replace(found, choice=choice)).to_facts()
        assert describe_conclusion({**facts, "members": [{"weight": 0.45}]}).endswith(words)

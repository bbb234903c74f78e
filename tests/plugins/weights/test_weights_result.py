"""The result of a search from given scores: its facts, its front, its trials, and its table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emberge import Artifact, Model, PerTensor
from emberge.merging import FoundWeights
from emberge_weights.candidates import ChosenWeighting, HeldOut, Search, fixed_candidates
from emberge_weights.layers.layer_search import Layers
from emberge_weights.real_merges import RealMerges
from emberge_weights.search_result import Front, SearchResult, describe_trials, front_of
from emberge_weights.unit_scores import UnitScores
from emberge_weights.weights_table import table

WEIGHTS = fixed_candidates(2, True)
# What each of two models and their base scores on four units.
IN_DATA = np.array([[0.8, 0.6, 0.7, 0.9], [0.4, 0.5, 0.2, 0.5], [0.1, 0.3, 0.2, 0.2]])
ELSEWHERE = np.array([[0.1, 0.2], [0.3, 0.2], [0.9, 0.8]])
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
    worth = [HeldOut(0.25, 0.05), HeldOut(0.0, 0.01), HeldOut(-0.5, 0.1)]
    data, far = scores("asked", WEIGHTS @ IN_DATA), scores("far", WEIGHTS @ ELSEWHERE)
    return Search(WEIGHTS, [data], [far], ChosenWeighting(1 if clear else 0, gain, worth))


def merged() -> RealMerges:
    """Real merges: equal weights, the first model alone, and three trials."""
    places = [0, 1, 5, 7, 9]
    data = WEIGHTS[places] @ IN_DATA + REAL
    data[3] += 0.1  # better than the one before it
    tests = [[0.5, 0.25], [0.75, 0.5], [0.25, 0.5], [0.5, 0.5], [1, 0.5]]
    return RealMerges(places, 2, [scores("asked", data)], [], [scores("held", tests)])


MODELS = [
    Model("a", Path("a"), "fa", Artifact("model", details={"examples": 1200, "seconds": 1234.6})),
    Model("b", Path("b"), "fb", Artifact("model", details={"more": 1})),
    Model("base", Path("base"), "f0"),
]
LICENCES = ["mit", None, "apache-2.0"]
LAYERS = Layers(
    ["embeddings", "layers.0"],
    np.array([[0.25, 0.5, 0.25], [0.75, 0.0, 0.25]]),
    [PerTensor(0.5), PerTensor(0.25), PerTensor(0.25)],
    HeldOut(0.03, 0.01),
)


def plain(difference: float, low: float, high: float) -> dict[str, float]:
    return {"difference": difference, "low": low, "high": high}


SETS = [
    {
        "name": "asked",
        "metric": "mean",
        "units": 4,
        "unit": "query",
        "equal": 0.575,
        "chosen": 0.75,
        "elsewhere": False,
    },
    {
        "name": "far",
        "metric": "mean",
        "units": 2,
        "unit": "query",
        "equal": 0.2,
        "chosen": 0.15,
        "elsewhere": True,
    },
]
MEMBERS = [
    {
        "name": "a",
        "weight": 1.0,
        "alone": 0.75,
        "worth": plain(0.25, 0.152, 0.348),
        "examples": 1200,
        "seconds": 1234.6,
        "licence": "mit",
    },
    {"name": "b", "weight": 0.0, "alone": 0.4, "worth": plain(0, -0.0196, 0.0196)},
    {
        "name": "base",
        "weight": 0.0,
        "alone": 0.2,
        "worth": plain(-0.5, -0.696, -0.304),
        "licence": "apache-2.0",
    },
]
# Steps from the base to equal weights, and the first model alone, which no other comes near.
FRONT = [
    {
        "gain": round(0.0375 * step, 6),
        "elsewhere": round(-0.065 * step, 6),
        "weights": {
            "a": round(0.05 * step, 6),
            "b": round(0.05 * step, 6),
            "base": round(1 - 0.1 * step, 6),
        },
        "over": "the base",
    }
    for step in range(11)
] + [
    {
        "gain": 0.55,
        "elsewhere": -0.7,
        "weights": {"a": 1.0, "b": 0.0, "base": 0.0},
        "over": "the base",
    }
]
TRIALS = {
    "count": 3,
    "rank_correlation": 0.5,
    "largest_error": 0.1075,
    "tests": {
        "equal": 0.375,
        "chosen": 0.625,
        "swept": 0.5,
        "best": 0.75,
        "over_swept": plain(0.125, -0.12, 0.37),
        "over_best": plain(-0.125, -0.37, 0.12),
        "units": 2,
    },
}


def test_facts_have_foretold_and_real_scores_of_what_was_chosen() -> None:
    result = SearchResult(MODELS, LICENCES, searched(), merged(), True)
    facts = rounded(result.facts())
    over_equal = facts["score"].pop("over_equal")
    assert over_equal["difference"] == pytest.approx(0.175, abs=1e-6)
    assert over_equal["high"] - over_equal["low"] == pytest.approx(
        2 * 1.96 * np.std(IN_DATA[0] - IN_DATA[1]) / 2 / 3**0.5, abs=1e-5
    )
    anchors = [
        {"weights": {"a": 0.5, "b": 0.5, "base": 0.0}, "foretold": 0.575, "real": 0.5825},
        {"weights": {"a": 1.0, "b": 0.0, "base": 0.0}, "foretold": 0.75, "real": 0.7575},
    ]
    assert facts == {
        "score": {"foretold": 0.7575, "real": 0.7575, "equal": 0.5825},
        "headroom": plain(0.125, 0.0858, 0.1642),
        "clear": True,
        "over_base": None,
        "correction": 0.0075,
        "candidates": 13,
        "members": MEMBERS,
        "sets": SETS,
        "anchors": anchors,
        "trials": TRIALS,
        "front": FRONT,
    }


def test_without_a_clear_gain_the_facts_are_those_of_equal_weights() -> None:
    result = SearchResult(MODELS, LICENCES, searched(clear=False), None, True)
    assert rounded(result.facts()) == {
        "score": {
            "foretold": 0.575,
            "real": None,
            "equal": 0.575,
            "over_equal": plain(0, 0, 0),
        },
        "headroom": plain(0.125, -0.365, 0.615),
        "clear": False,
        "over_base": None,
        "correction": 0.0,
        "candidates": 13,
        "members": [{**one, "weight": w} for one, w in zip(MEMBERS, (0.5, 0.5, 0.0), strict=True)],
        "sets": [{**one, "chosen": one["equal"]} for one in SETS],
        "anchors": [],
        "trials": None,
        "front": FRONT,
    }
    assert SearchResult(MODELS, LICENCES, searched(clear=False), merged(), True).chosen == 0


def test_weights_by_layer_are_taken_with_their_means_where_they_are_better(tmp_path: Path) -> None:
    workspace: Any = SimpleNamespace(folder=tmp_path)
    result = SearchResult(MODELS, LICENCES, searched(), merged(), True, LAYERS)
    artifact = result.write(workspace)
    facts = result.facts()
    found = FoundWeights.read(tmp_path)
    assert found.weights == {"fa": 0.5, "fb": 0.25, "f0": 0.25}
    assert found.by_tensor == dict(zip(found.weights, LAYERS.by_tensor, strict=True))
    assert found.names == {"fa": "a", "fb": "b", "f0": "base"}
    assert found.facts == json.loads(json.dumps(facts))
    assert rounded(facts["layers"]) == {
        "gain": plain(0.03, 0.0104, 0.0496),
        "clear": True,
        "weights": {
            "a": {"embeddings": 0.25, "layers.0": 0.75},
            "b": {"embeddings": 0.5, "layers.0": 0.0},
            "base": {"embeddings": 0.25, "layers.0": 0.25},
        },
    }
    assert artifact.kind == "file"
    assert artifact.parents == ("fa", "fb", "f0")
    assert result.front is not None
    assert artifact.details == {
        "table": "weights.md",
        "weights": {"a": 0.5, "b": 0.25, "base": 0.25},
        "headroom": facts["headroom"],
        "score": facts["score"],
        "figures": result.front.figures(),
    }
    assert (tmp_path / "weights.md").read_text() == table(facts)
    chance = replace(LAYERS, gain=HeldOut(0.03, 0.1))
    nowhere = replace(searched(), elsewhere=[])
    result = SearchResult(MODELS, LICENCES, nowhere, merged(), True, chance)
    assert "figures" not in result.write(workspace).details
    found = FoundWeights.read(tmp_path)
    assert (found.weights, found.by_tensor) == ({"fa": 1.0, "fb": 0.0, "f0": 0.0}, {})
    assert (found.facts["layers"]["clear"], found.facts["front"]) == (False, [])


def test_the_table_has_all_facts_from_the_conclusion_to_the_front() -> None:
    result = SearchResult(MODELS, LICENCES, searched(), merged(), True, LAYERS)
    assert table(result.facts()) == TABLE


def test_the_table_of_nothing_found_has_no_empty_parts() -> None:
    found = replace(searched(clear=False), elsewhere=[])
    layers = replace(LAYERS, gain=HeldOut(0.03, 0.1))
    text = table(SearchResult(MODELS, LICENCES, found, None, True, layers).facts())
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert head == ["# Weights found", "## By layer"]
    assert "no more than chance, so the equal weights stay." in text
    assert "On all queries" not in text
    assert "no more than chance, so each member keeps one weight.\n\n| set |" in text
    assert text.endswith("| asked | 4 | 57.50 | 57.50 |\n")
    foretold = table(SearchResult(MODELS, LICENCES, searched(), None, True).facts())
    assert "On all queries, foretold, the choice gains +17.50" in foretold
    untested = replace(merged(), tests=[])
    trials = table(SearchResult(MODELS, LICENCES, found, untested, True).facts())
    assert trials.endswith("the largest error is 10.75.\n")


def test_the_table_says_why_the_base_has_a_half() -> None:
    found = searched(clear=False)
    choice = replace(found.choice, over_base=HeldOut(0.01, 0.02))
    found = replace(found, choice=choice)
    text = table(SearchResult(MODELS, LICENCES, found, None, True).facts())
    assert (
        "is no more than chance.\nEqual weights gain +1.00 [-2.92, +4.92] over the base alone"
        in text
    )
    assert "so the base has a half." in text
    clear = replace(found, choice=replace(choice, over_base=HeldOut(0.1, 0.02)))
    text = table(SearchResult(MODELS, LICENCES, clear, None, True).facts())
    assert "so the equal weights stay." in text
    assert "a half" not in text


# ── trials and front ────────────────────────────────────────────────────────────────────────────


def test_trials_are_compared_with_what_was_foretold_and_with_the_choice() -> None:
    assert rounded(describe_trials(searched(), merged(), 1)) == TRIALS
    untested = describe_trials(searched(), replace(merged(), tests=[]), 1)
    assert rounded(untested) == {**TRIALS, "tests": None}
    assert describe_trials(searched(), replace(merged(), anchors=5), 1) is None


def test_no_weighting_on_the_front_is_beaten_in_both() -> None:
    # The fourth is as good elsewhere as the third and worse in the data, the fifth beaten by the second.
    data = [[0.5], [0.7], [0.6], [0.4], [0.7], [0.9]]
    far = [[0.5], [0.4], [0.8], [0.8], [0.3], [0.1]]
    weights = np.array([[0.5, 0.5], [1, 0], [0, 1], [0.2, 0.8], [0.3, 0.7], [0.9, 0.1]])
    found = Search(weights, [scores("s", data)], [scores("far", far)], searched().choice)
    front = front_of(found, 1, False)
    assert front is not None
    assert (front.reference, front.places, front.chosen) == ("equal weights", [2, 1, 5], 1)
    assert rounded(front.gains.tolist()) == [0, 0.2, 0.1, -0.1, 0.2, 0.4]
    assert rounded(front.elsewhere.tolist()) == [0, -0.1, 0.3, 0.3, -0.2, -0.4]
    assert rounded(front.plain(["a", "b"])) == [
        {"gain": gain, "elsewhere": lost, "weights": {"a": a, "b": b}, "over": "equal weights"}
        for gain, lost, a, b in ((0.1, 0.3, 0, 1), (0.2, -0.1, 1, 0), (0.4, -0.4, 0.9, 0.1))
    ]
    (figure,) = front.figures()
    assert "equal weights" in figure["points"].pop("x")
    assert figure["points"] == {
        "y": "gain elsewhere (points)",
        "series": {
            "candidates": [[0, 0], [20, -10], [10, 30], [-10, 30], [20, -20], [40, -40]],
            "front": [[10, 30], [20, -10], [40, -40]],
            "equal weights": [[0, 0, "equal weights"]],
            "chosen": [[20, -10, "chosen"]],
        },
    }
    assert figure["title"] == "What weights gain, and lose elsewhere"
    assert "below 0 something is lost" in figure["caption"]
    assert figure["table"] == {
        "title": "Weightings on the front",
        "head": ["Gain in the data", "Gain elsewhere"],
        "rows": [["+10.00", "+30.00"], ["+20.00", "-10.00"], ["+40.00", "-40.00"]],
    }
    assert front_of(replace(found, elsewhere=[]), 1, False) is None


def test_the_base_has_a_point_of_its_own_and_gains_are_over_it() -> None:
    front = front_of(searched(), 1, True)
    assert front is not None
    assert front.reference == "the base"
    (figure,) = front.figures()
    series = figure["points"]["series"]
    assert series["base"] == [[0, 0, "base"]]
    assert series["equal weights"] == [[37.5, -65, "equal weights"]]
    assert figure["points"]["x"] == "gain over the base in the data (points)"


def test_of_a_long_front_twelve_places_are_listed_and_three_hundred_candidates_drawn() -> None:
    gains = np.arange(400) / 1000
    weights = np.full((400, 2), 0.5)
    front = Front("equal weights", gains, -gains, range(0, 340, 10), 0, weights, False)
    listed = [round(1000 * one["gain"]) for one in front.plain(["a", "b"])]
    assert listed == [0, 30, 60, 90, 120, 150, 180, 210, 240, 270, 300, 330]
    (figure,) = front.figures()
    assert len(figure["points"]["series"]["candidates"]) == 300
    assert len(figure["points"]["series"]["front"]) == 34
    assert len(figure["table"]["rows"]) == 12


TABLE = """# Weights found

Choosing among 13 weightings gains +12.50 [+8.58, +16.42] points over equal weights on queries that were not chosen by: weights were chosen.
On all queries, merged for real, the choice gains +17.50 [+9.01, +25.99].

| member | weight | alone | worth | examples | training | licence |
| --- | --- | --- | --- | --- | --- | --- |
| a | 0.500 | 75.00 | +25.00 [+15.20, +34.80] | 1,200 | 1,235 s | mit |
| b | 0.250 | 40.00 | +0.00 [-1.96, +1.96] |  |  |  |
| base | 0.250 | 20.00 | -50.00 [-69.60, -30.40] |  |  | apache-2.0 |

Worth is what is lost without the member, weights being chosen anew, with its 95 % interval.

## By layer

Weights by layer gain +3.00 [+1.04, +4.96] points over one for all layers on queries that they were not fitted to: these are the weights, and those above their means.

| layer | a | b | base |
| --- | --- | --- | --- |
| embeddings | 0.25 | 0.50 | 0.25 |
| layers.0 | 0.75 | 0.00 | 0.25 |

| set | queries or pairs | equal weights | chosen |
| --- | --- | --- | --- |
| asked | 4 | 57.50 | 75.00 |
| far (elsewhere) | 2 | 20.00 | 15.00 |

## Merged for real

| a | b | base | foretold | real |
| --- | --- | --- | --- | --- |
| 0.50 | 0.50 | 0.00 | 57.50 | 58.25 |
| 1.00 | 0.00 | 0.00 | 75.00 | 75.75 |

What is foretold is corrected by the mean difference, +0.75.

## Random weightings, merged for real

Of 3 random weightings, foretold and real scores have a rank correlation of 0.50; the largest error is 10.75.

| weights | tests | the choice over it |
| --- | --- | --- |
| equal weights | 37.50 |  |
| chosen | 62.50 |  |
| the best of them in the data | 50.00 | +12.50 [-12.00, +37.00] |
| the best of them in the tests | 75.00 | -12.50 [-37.00, +12.00] |

## Gain over the base, and loss elsewhere

| a | b | base | data | elsewhere |
| --- | --- | --- | --- | --- |
| 0.00 | 0.00 | 1.00 | +0.00 | +0.00 |
| 0.05 | 0.05 | 0.90 | +3.75 | -6.50 |
| 0.10 | 0.10 | 0.80 | +7.50 | -13.00 |
| 0.15 | 0.15 | 0.70 | +11.25 | -19.50 |
| 0.20 | 0.20 | 0.60 | +15.00 | -26.00 |
| 0.25 | 0.25 | 0.50 | +18.75 | -32.50 |
| 0.30 | 0.30 | 0.40 | +22.50 | -39.00 |
| 0.35 | 0.35 | 0.30 | +26.25 | -45.50 |
| 0.40 | 0.40 | 0.20 | +30.00 | -52.00 |
| 0.45 | 0.45 | 0.10 | +33.75 | -58.50 |
| 0.50 | 0.50 | 0.00 | +37.50 | -65.00 |
| 1.00 | 0.00 | 0.00 | +55.00 | -70.00 |
"""  # noqa: E501 - a paragraph is a line

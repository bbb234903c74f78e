"""The share of a gain that an old index keeps: its interval, its arms of seeds, and requirements on it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import (
    Artifact,
    Model,
    ModelRef,
    RecipeError,
)
from emberge.contracts import KeptIndex
from emberge.evaluating import read_scores
from emberge_evaluate.bootstrap import ratio_interval
from emberge_evaluate.evaluate_step import Evaluate, EvaluatedModel
from emberge_evaluate.old_indexes import index_problems
from emberge_evaluate.requirements import Requirement

from tests.support.bench import Bench
from tests.support.query_gains import OLD, QUERIES, TASKS, Given


def result(tmp_path: Path, given: Given, *names: str, **options: Any) -> dict[str, Any]:
    bench = Bench(tmp_path)
    for name in names:
        bench.many[f"${name}"] = [Model(name, tmp_path, f"hash-{name}")]
    entries = tuple(EvaluatedModel(model=ModelRef(f"${name}")) for name in names)
    made = Evaluate(models=entries, evaluators=(given,), **options).run(bench)
    found: dict[str, Any] = json.loads((bench.folder / "scores.json").read_text())
    found["unmet"] = made.details["unmet"]
    found["table"] = (bench.folder / "scores.md").read_text()
    assert read_scores(bench.folder).gains_kept
    return found


def kept(found: Mapping[str, Any], model: str = "new on old") -> dict[str, Any]:
    (one,) = (g for g in found["gains_kept"] if (g["model"], g["on"]) == (model, "task"))
    return dict(one)


def test_the_share_of_an_even_gain_has_no_width(tmp_path: Path) -> None:
    """Every query gains 0.2, and 0.15 of it on the old index: three quarters, on every draw."""
    given = Given(gains={("new", False): 0.2, ("new", True): 0.15})
    found = result(tmp_path, given, "old", "new")
    one = kept(found)
    assert one["gain"] == pytest.approx(0.2)
    assert [one[end] for end in ("share", "low", "high")] == pytest.approx([0.75] * 3)
    assert "| new on old | 75 % [75, 75] |" in found["table"]


def test_the_interval_is_that_of_queries_drawn_together(tmp_path: Path) -> None:
    """Where the same queries gain on both indexes the share is sure, though neither gain is."""
    rng = np.random.default_rng(0)
    gain = rng.normal(0.2, 0.2, len(QUERIES))
    together = Given(gains={("new", False): gain, ("new", True): 0.6 * gain})
    one = kept(result(tmp_path / "a", together, "old", "new"))
    assert one["gain_high"] - one["gain_low"] > 0.05
    assert [one[end] for end in ("share", "low", "high")] == pytest.approx([0.6] * 3)
    apart = Given(gains={("new", False): gain, ("new", True): 0.6 * rng.permutation(gain)})
    other = kept(result(tmp_path / "b", apart, "old", "new"))
    assert other["share"] == pytest.approx(0.6)
    assert other["low"] < 0.55 < 0.65 < other["high"]


def test_a_gain_that_may_be_none_has_no_share(tmp_path: Path) -> None:
    gain = np.where(np.arange(len(QUERIES)) % 2, 0.2, -0.19)
    given = Given(gains={("new", False): gain, ("new", True): 0.5 * gain})
    require = Requirement(model=ModelRef("$new"), on_index_of=ModelRef("$old"), gain_kept=0.1)
    found = result(tmp_path, given, "old", "new", require=(require,))
    one = kept(found)
    assert one["gain_low"] < 0 < one["gain_high"]
    assert (one["share"], one["low"], one["high"]) == (None, None, None)
    assert "no clear gain: +0.5" in found["table"]
    (unmet,) = found["unmet"]
    assert "no clear gain of new over old" in unmet


def test_draws_without_a_gain_widen_the_interval() -> None:
    """Of ten draws one has no gain: at 80 % either end is the draw before it, at 90 % there is none."""
    above = np.arange(10) / 10
    below = np.array([0.0, *[1.0] * 9])
    assert ratio_interval(above, below, 0.6) == pytest.approx((0.1, 0.8))
    assert ratio_interval(above, below, 0.9) == (None, None)


@pytest.mark.parametrize(("share", "met"), [(0.74, True), (0.76, False)])
def test_a_gate_takes_the_share_that_is_sure(tmp_path: Path, share: float, met: bool) -> None:
    given = Given(gains={("new", False): 0.2, ("new", True): 0.15})
    require = Requirement(model=ModelRef("$new"), on_index_of=ModelRef("$old"), gain_kept=share)
    found = result(tmp_path, given, "old", "new", require=(require,))
    (verdict,) = found["requirements"]
    assert verdict["met"] is met
    assert (verdict["demand"], verdict["model"], verdict["other"]) == (
        "gain_kept",
        "new on old",
        "old",
    )
    assert verdict["lower_bound"] == pytest.approx(0.75)
    assert len(found["unmet"]) == (not met)
    assert verdict["text"] == (
        f"new on old is to keep at least {share:.0%} of the gain on all: it keeps 75%, at worst 75% (at 95%)"
    )


def test_a_share_that_is_high_enough_but_uncertain_asks_for_more_queries(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    gain = rng.normal(0.2, 0.2, len(QUERIES))
    given = Given(gains={("new", False): gain, ("new", True): 0.6 * rng.permutation(gain)})
    require = Requirement(model=ModelRef("$new"), on_index_of=ModelRef("$old"), gain_kept=0.59)
    (text,) = result(tmp_path, given, "old", "new", require=(require,))["unmet"]
    assert re.fullmatch(
        "new on old is to keep at least 59% of the gain on all: it keeps 60%, but with 80 queries it may be "
        r"as low as \d\d% \(at 95%\); more test queries can tell",
        text,
    )


def test_a_gate_names_one_of_several_indexes(tmp_path: Path) -> None:
    indexes = (OLD, KeptIndex(model=ModelRef("$old"), anew=20))
    given = Given(gains={("new", False): 0.2, ("new", True): 0.15}, indexes=indexes)
    require = Requirement(
        model=ModelRef("$new"), on_index_of=ModelRef("$old"), gain_kept=0.7, index="old, 20 anew"
    )
    found = result(tmp_path, given, "old", "new", require=(require,))
    assert [verdict["model"] for verdict in found["requirements"]] == ["new on old, 20 anew"]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"on_index_of": ModelRef("$new"), "gain_kept": 0.5}, "itself"),
        ({"on_index_of": ModelRef("$old")}, "gain_kept"),
        ({"gain_kept": 0.5}, "on_index_of"),
        ({"better_than": (ModelRef("$old"),), "index": "old"}, "on_index_of"),
    ],
)
def test_half_a_requirement_on_an_index_is_refused(options: dict[str, Any], word: str) -> None:
    faults = list(Requirement(model=ModelRef("$new"), **options).problems())
    assert any(word in fault for fault in faults)


@pytest.mark.parametrize(
    ("of", "index", "fix"),
    [
        ("$base", None, "documents_of: $base"),
        ("$old", None, "`index`"),
        ("$old", "old, 2 anew", "old, 20 anew"),
    ],
)
def test_a_requirement_on_an_index_that_is_not_clear_is_refused(
    tmp_path: Path, of: str, index: str | None, fix: str
) -> None:
    indexes = (OLD, KeptIndex(model=ModelRef("$old"), anew=20))
    require = Requirement(
        model=ModelRef("$new"), on_index_of=ModelRef(of), gain_kept=0.7, index=index
    )
    with pytest.raises(RecipeError) as refused:
        result(tmp_path, Given(indexes=indexes), "old", "new", "base", require=(require,))
    assert fix in str(refused.value)


def test_seeds_are_pooled_and_their_spread_is_in_the_interval(tmp_path: Path) -> None:
    """Two seeds keep 0.7 and 0.8 of an even gain: 0.75, and Student's t with one degree around it."""
    gains = {
        ("new.seed=1", False): 0.2,
        ("new.seed=1", True): 0.14,
        ("new.seed=2", False): 0.2,
        ("new.seed=2", True): 0.16,
    }
    found = result(tmp_path, Given(gains=gains), "old", "new.seed=1", "new.seed=2")
    one = kept(found)
    assert (one["new"], one["share"]) == ("new", pytest.approx(0.75))
    # A standard error of 0.05 and t of 12.7 at 95 %: 0.75 ± 0.64, within the noise of 4,000 draws.
    assert 0 < one["low"] < 0.3
    assert 1.2 < one["high"] < 1.5


def test_every_evaluator_has_the_same_indexes() -> None:
    code, papers = TASKS
    (problem,) = index_problems([code, papers, code.on_index(OLD, "x")])
    assert problem.startswith("papers: ")
    assert not list(index_problems(TASKS))


def test_a_column_of_an_old_index_has_no_training_cost(tmp_path: Path) -> None:
    details = {"datasets": {"rows": {"rows": 5, "of": 10}}}
    bench = Bench(tmp_path)
    for name in ("old", "new"):
        artifact = Artifact("model", details=details if name == "new" else {})
        bench.many[f"${name}"] = [Model(name, tmp_path, f"hash-{name}", artifact)]
    entries = tuple(EvaluatedModel(model=ModelRef(f"${name}")) for name in ("old", "new"))
    Evaluate(models=entries, evaluators=(Given(gains={}),)).run(bench)
    scores = read_scores(bench.folder)
    assert "new on old" in scores.models
    assert {name: cost.times for name, cost in scores.costs.items()} == {"new": 0.5}

"""The plan of an adaptation and the recipe that it is written as."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from emberge import load_plugins, parse_recipe
from emberge_adapt import (
    AdaptPlan,
    DataFacts,
    TrainingSettings,
    choose_training,
    count_held_out_rows,
    write_recipe,
)

from tests.support.adapt_plans import FACTS, PLAN

EFFORTS: tuple[Any, ...] = ("quick", "normal", "thorough")


def steps_of(plan: AdaptPlan) -> dict[str, Any]:
    steps: dict[str, Any] = yaml.safe_load(write_recipe(plan))["steps"]
    return steps


def evaluated(steps: dict[str, Any]) -> list[Any]:
    """The evaluation sets of the scores."""
    sets: list[Any] = steps["scores"]["evaluate"]["evaluators"]["mteb"]["data"]
    return sets


def test_equal_plans_are_equal_recipes_with_the_seed_that_was_asked_for() -> None:
    assert write_recipe(PLAN) == write_recipe(replace(PLAN))
    assert yaml.safe_load(write_recipe(replace(PLAN, seed=7)))["seed"] == 7


@pytest.mark.parametrize("effort", EFFORTS)
def test_every_effort_is_a_sound_recipe_that_merges_with_the_base(effort: Any) -> None:
    """Bags are trained and negatives mined with the largest effort alone."""
    text, is_large = write_recipe(replace(PLAN, effort=effort)), effort == "thorough"
    recipe, written = parse_recipe(text, load_plugins()), yaml.safe_load(text)
    trainings = [step for step in recipe.steps if step.kind == "train:train"]
    (merge,) = (step.step for step in recipe.steps if step.kind == "merge:merge")
    assert len(trainings) == (4 if is_large else 1)
    assert [entry.model.text for entry in merge.models][-1] == "./base"  # type: ignore[attr-defined]
    steps, training = written["steps"], written["x-training"]
    assert ("bag" in steps) == ("mined" in steps) == is_large
    assert ("$mined" in steps["report"]["report"]["of"]) == is_large
    assert training["data"] == ("$mined" if is_large else "$clean")
    assert ("hard_negatives" in training) == is_large
    if is_large:
        assert steps["bag"]["train"]["sampler"][0] == {"bagging": {"ratio": 0.6, "draw": "$draw"}}
        assert steps["found"]["find_weights"]["models"] == ["$bag", "$full"]
        scores = steps["scores"]["evaluate"]
        assert scores["models"] == ["./base", "$model", "$bag", "$full"]
        assert scores["compare"] == [["$model", "$bag"], ["$model", "$full"]]


def test_few_development_rows_find_no_weights_but_keep_half_of_the_base() -> None:
    steps = steps_of(replace(PLAN, dev_units=54))
    assert "found" not in steps
    assert steps["model"]["merge"]["keep"] == 0.5
    assert "found" in steps_of(replace(PLAN, dev_units=55))


def test_a_test_of_the_users_own_is_judged_and_kept_out_of_the_training() -> None:
    plan = replace(PLAN, test="real$.csv", test_rows=0, documents="docs.jsonl")
    steps = steps_of(plan)
    entry = {"path": "real$$.csv", "documents": "docs.jsonl"}
    assert "test" not in steps["parts"]["split"]
    tests = steps["clean"]["decontaminate"]["evaluators"]["mteb"]["data"]
    assert tests == [{"path": "$parts", "split": "dev"}, {"path": "real$$.csv"}]
    assert entry in steps["scores"]["evaluate"]["evaluators"]["mteb"]["data"]
    assert steps["found"]["find_weights"]["data"]["documents"] == "docs.jsonl"
    mined = steps_of(replace(plan, effort="thorough"))["mined"]
    assert mined["mine_hard_negatives"]["corpus"] == "docs.jsonl"
    columns = {"anchor": "frage", "positive": "antwort"}
    steps = steps_of(replace(PLAN, test="real.csv", test_rows=0, columns=columns))
    entry = {"path": "real.csv", "columns": columns}  # type: ignore[dict-item]
    assert evaluated(steps)[0] == entry
    tests = steps["clean"]["decontaminate"]["evaluators"]["mteb"]["data"]
    assert tests == [{"path": "$parts", "split": "dev"}, entry]


def test_the_gate_is_a_gain_over_the_base_and_a_limit_of_forgetting() -> None:
    gain, forgetting = steps_of(PLAN)["scores"]["evaluate"]["require"]
    assert gain == {"model": "$model", "better_than": "./base", "tasks": "ind"}
    assert forgetting == {"model": "$model", "forgetting": 3}


def test_negatives_that_the_rows_have_are_kept() -> None:
    for effort in EFFORTS:
        text = write_recipe(replace(PLAN, has_negatives=True, effort=effort))
        parse_recipe(text, load_plugins())
        recipe = yaml.safe_load(text)
        assert "mined" not in recipe["steps"]
        assert recipe["x-training"]["data"] == "$clean"
        assert recipe["x-training"]["hard_negatives"] == 1


def test_nothing_is_mined_for_scored_pairs_be_they_beside_searches_or_among_few_rows() -> None:
    large = replace(PLAN, effort="thorough")
    for tasks in (("sts",), ("retrieval", "sts")):
        assert "mined" not in steps_of(replace(large, tasks=tasks))
    assert "mined" in steps_of(replace(large, tasks=("retrieval", "reranking")))
    steps = steps_of(replace(large, rows=150, dev_rows=30, test_rows=30))
    assert "mined" not in steps
    assert "$mined" not in steps["report"]["report"]["of"]


@pytest.mark.parametrize("tasks", [("retrieval",), ("sts",), ("retrieval", "sts")])
def test_only_scored_pairs_are_kept_near_their_embeddings_by_the_base(tasks: Any) -> None:
    recipe = yaml.safe_load(write_recipe(replace(PLAN, tasks=tasks)))
    kept = {"keep_space": {"guide": {"model": "./base", "max_length": 64}, "weight": 1}}
    flags = ("symmetric", "contrast_anchors", "contrast_positives", "mask_equal_text")
    pairs = {"infonce": {"temperature": 0.05, **dict.fromkeys(flags, True)}}
    scored = {"default": pairs, "by_task": {"sts": ["cosent", kept]}}
    assert recipe["x-training"]["loss"] == (scored if "sts" in tasks else pairs)
    assert recipe.get("x-kept") == (kept if "sts" in tasks else None)
    assert recipe["x-training"]["data"] == "$clean"


def test_documents_get_queries_of_their_own_structure() -> None:
    steps = steps_of(replace(PLAN, data_entry={"path": "handbook"}, data_kind="documents"))
    assert steps["generated"]["generate_queries"] == {
        "documents": "handbook",
        "dev": 0.1,
        "test": 0.15,
    }
    assert "parts" not in steps
    assert steps["clean"]["decontaminate"]["data"] == "$generated"
    assert "documents" not in evaluated(steps)[0]
    # Queries made of documents choose no weights.
    assert "found" not in steps
    assert steps["model"]["merge"]["models"] == ["$trained"]
    assert steps["model"]["merge"]["keep"] == 0.5


def test_real_queries_search_all_documents() -> None:
    data = {"path": "handbook"}
    plan = replace(PLAN, data_entry=data, data_kind="documents", test="real.csv", test_rows=0)
    steps = steps_of(plan)
    assert steps["generated"]["generate_queries"]["test"] == 0
    assert evaluated(steps)[0] == {"path": "real.csv", "documents": "$generated"}
    entry = {"path": "$parts", "split": "test", "documents": "$unique"}
    assert evaluated(steps_of(PLAN))[0] == entry
    assert evaluated(steps_of(replace(PLAN, row_documents=9000)))[0] == {
        **entry,
        "limit_corpus": 5000,
    }
    assert steps_of(PLAN)["found"]["find_weights"]["data"]["documents"] == "$unique"
    assert "documents" not in evaluated(steps_of(replace(PLAN, tasks=("sts",))))[0]


@pytest.mark.parametrize(
    ("rows", "dev", "test"),
    [(50, 10, 17), (300, 60, 100), (500, 60, 100), (2000, 200, 300), (100_000, 500, 1000)],
)
def test_enough_is_held_out_but_never_most_rows(rows: int, dev: int, test: int) -> None:
    facts = replace(FACTS, rows=rows, queries=rows)
    assert count_held_out_rows(facts, has_test=False) == (dev, test)
    assert count_held_out_rows(facts, has_test=True) == (dev, 0)


def test_rows_that_share_queries_are_held_out_until_there_are_enough_queries() -> None:
    facts = replace(FACTS, rows=600, queries=400)
    assert count_held_out_rows(facts, has_test=False) == (90, 150)
    assert count_held_out_rows(replace(facts, tasks=("sts",)), has_test=False) == (60, 100)


def test_each_of_several_sets_gives_a_share() -> None:
    steps = steps_of(replace(PLAN, sets=2))
    shares = {"share": 0.1, "test": 0.15}
    assert steps["parts"]["split"] == {"data": "$unique", **shares, "jaccard": 0.6}


def choose(facts: DataFacts = FACTS, **changes: Any) -> TrainingSettings:
    options: dict[str, Any] = {
        "rows": 1500,
        "effort": "normal",
        "parameters": 22_000_000,
        "length_limit": 256,
    }
    return choose_training(facts, **{**options, **changes})


def test_the_length_holds_the_texts_within_the_models_limit() -> None:
    assert choose().max_length == 128
    assert choose(length_limit=100).max_length == 100
    short = replace(FACTS, document_tokens=9)
    assert choose(short).max_length == 32
    endless = replace(FACTS, document_tokens=4000)
    assert choose(endless, length_limit=None).max_length == 256


def test_few_rows_are_seen_several_times() -> None:
    assert [choose(rows=rows).epochs for rows in (500, 1500, 5000, 50_000)] == [5, 2, 2, 1]
    quick = [choose(rows=rows, effort="quick").epochs for rows in (500, 1500, 50_000)]
    assert quick == [5, 1, 1]
    assert [choose(rows=rows).batch_size for rows in (1500, 63, 27, 9)] == [32, 16, 8, 8]
    assert choose(rows=8000).epochs == 1
    assert choose(rows=8000, effort="thorough").epochs == 2  # of 60 % of the rows
    passages = replace(FACTS, is_passages=True)
    assert [choose(passages, rows=rows).epochs for rows in (500, 50_000)] == [2, 1]


def test_larger_models_learn_more_slowly() -> None:
    scored = replace(FACTS, tasks=("sts",))
    rates = [
        [choose(facts, parameters=count).learning_rate for count in (22e6, 110e6, 600e6)]
        for facts in (FACTS, scored)
    ]
    assert rates == [["7e-5", "3e-5", "1e-5"], ["1e-4", "5e-5", "2e-5"]]


def test_the_base_has_a_larger_share_of_a_model_of_scored_pairs() -> None:
    for tasks, share in ((("retrieval",), 0.1), (("retrieval", "sts"), 0.2)):
        steps = steps_of(replace(PLAN, tasks=tasks))  # type: ignore[arg-type]
        assert steps["found"]["find_weights"]["base_share"] == share

"""BOOM (arXiv:2602.05787): its recipes have the settings that the paper prints, typed here from the paper."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from emberge_mteb.hub_tasks import build_hub_tasks

from tests.support.printed import sets_of, steps_of

SMALL, LARGE = "Qwen/Qwen3-0.6B", "Qwen/Qwen3-4B"
PAPER, PAPER_4B = "boom/paper", "boom/paper_4b"
CLUSTERS, INCREMENTAL = "boom/paper_clusters", "boom/paper_incremental"
RECIPES = {PAPER: {SMALL}, PAPER_4B: {LARGE}, CLUSTERS: {LARGE}, INCREMENTAL: {SMALL, LARGE}}
# Section 4.3 (page 5), by model.
BATCH, LORA = {SMALL: 256, LARGE: 128}, {SMALL: None, LARGE: (32, 32)}
# Section 4.1 (page 4): 31 datasets, of which the three similarity sets are one split.
ENGLISH = {"retrieval": 10, "reranking": 1, "classification": 8, "clustering": 11, "sts": 1}
CODE = {f"cornstack_{one}" for one in ("javascript", "java", "python", "php", "ruby")}
# Section 4.2 (pages 4 and 5): benchmarks, and numbers of tasks.
BENCHMARKS = {"english": "MTEB(eng, v2)", "code": "MTEB(Code, v1)", "rteb": "RTEB(beta)"}
COUNTS = {"english": 41, "code": 12, "rteb": 16}
# Tables 4 and 6: the bags of a merge by their per cent.
TABLE_4 = {(100,), (50, 50), (60, 60, 60), (20, 40, 60, 80, 100)}
TABLE_6 = TABLE_4 | {(60, 60), (60, 80), (50, 50, 50), (40, 60, 80), (80, 100)}
TABLE_6 |= {(20, 40, 60, 80), (60, 80, 100), (40, 60, 80, 100)}


def bag(recipe: str, name: str) -> tuple[int, str | None, int]:
    """Return the per cent, part and draw of the data that a training has."""
    sampler = steps_of(recipe)[name].sampler[0]
    if type(sampler).__name__ != "Bagging":
        return 100, None, 0
    return round(100 * sampler.ratio.default), sampler.part, sampler.draw


def members(recipe: str, name: str) -> list[str]:
    return [entry.model.step for entry in steps_of(recipe)[name].models]


def way(step: Any) -> tuple[str, str]:
    return type(step.strategy[-1]).__name__, step.weights


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_training_has_the_printed_settings(recipe: str) -> None:
    steps = steps_of(recipe).items()
    found = {name: step for name, step in steps if hasattr(step, "hard_negatives")}
    assert {step.model.text for step in found.values()} == RECIPES[recipe]
    for name, step in found.items():
        model, lora = step.model.text, step.backbone.lora
        assert (step.learning_rate, step.epochs) == (5e-5, 1), name
        assert (step.hard_negatives, step.max_length.default) == (7, 512), name
        assert step.sampler[-1].batch_size.default == BATCH[model], name
        assert (lora and (lora.rank, lora.alpha)) == LORA[model], name
        assert [type(loss).__name__ for loss in step.loss.default] == ["InfoNCE"], name


def test_the_data_are_those_of_section_4() -> None:
    english = sets_of(PAPER, "corpora/english").values()
    assert Counter(one.task for one in english) == ENGLISH
    for one in english:
        expected = "in_batch" if one.task in ("retrieval", "reranking") else "hard_only"
        assert one.negatives == expected, one.name
    general = sets_of(PAPER, "corpora/general")
    assert set(general) == {"dureader", "miracl", "mr_tydi", "t2ranking"} | CODE
    assert {general[name].limit for name in CODE} == {10_000}


@pytest.mark.parametrize("recipe", [PAPER, PAPER_4B])
def test_tasks_and_datasets_come_in_the_printed_order_or_are_merged(recipe: str) -> None:
    found = steps_of(recipe)
    (in_tasks,), (in_datasets,) = (found[f"{n}_in_turn"].sampler for n in ("tasks", "datasets"))
    order = ("classification", "clustering", "sts", "retrieval")  # section 5
    assert in_tasks.order == in_datasets.order == order
    assert in_datasets.pin_last == ("msmarco_document", "msmarco_passage")
    assert type(found["two_stage"].sampler[0]).__name__ == "TwoStage"
    assert sum(name.startswith("of_dataset.") for name in found) == sum(ENGLISH.values())
    tasks = [found[name].sampler[0].tasks for name in members(recipe, "tasks_merged")]
    assert tasks == [("sts",), ("clustering",), ("classification",), ("retrieval", "reranking")]
    assert way(found["datasets_merged"]) == way(found["tasks_merged"]) == ("MultiSlerp", "size")


@pytest.mark.parametrize("recipe", RECIPES)
def test_models_are_scored_on_the_printed_tasks(recipe: str) -> None:
    scored = {name.removeprefix("large_"): step for name, step in steps_of(recipe).items()}
    for benchmark in ("english",) if recipe == CLUSTERS else BENCHMARKS:
        (evaluator,) = scored[benchmark].evaluators
        assert evaluator.benchmark == BENCHMARKS[benchmark]
        tasks = build_hub_tasks((), evaluator.benchmark, (), evaluator.only)
        assert [task.metadata.name for task in tasks] == list(evaluator.only)
        assert len(tasks) == COUNTS[benchmark]


def test_table_1_has_nine_merges_of_four_tasks_and_sce_in_both_readings() -> None:
    ways = {
        **{"SequentialSlerp": ["slerp_n"], "MultiSlerp": ["tasks_merged", "tasks_merged_s"]},
        **{"Karcher": ["karcher_s"], "ModelStock": ["stock"], "SignConsensus": ["ties_n", "sce"]},
        "TaskArithmetic": ["arithmetic_n", "arithmetic_s", "sce_printed"],
    }
    found = steps_of(PAPER_4B)
    for strategy, names in ways.items():
        for name in names:
            equal = name.endswith("_s") or name in ("stock", "sce")
            assert way(found[name]) == (strategy, "equal" if equal else "size"), name
            assert members(PAPER_4B, name) == members(PAPER_4B, "tasks_merged")
    assert not found["stock"].strategy[-1].clamp, "t of eq. 9 has no bound"
    assert type(found["sce_printed"].strategy[0]).__name__ == "Unanimous"  # eq. 7
    assert type(found["sce"].strategy[1]).__name__ == "EnergyWeights"  # as mergekit has it
    scored = {entry.model.step for entry in found["english"].models}
    assert {name for names in ways.values() for name in names} <= scored


def test_table_3_has_the_printed_clusters_and_figure_3_three_pairs() -> None:
    """Section 5.3 (pages 6 and 7)."""
    found = steps_of(CLUSTERS)
    assert found["study"].rows is None
    for prefix, threshold, count in (("three", 0.15, 3), ("two", 0.2, 2)):
        for how, weights in (("s", "equal"), ("n", "size")):
            name = f"{prefix}_{how}"
            assert way(found[name]) == ("MultiSlerp", weights)
            cuts = [found[one].sampler[0] for one in members(CLUSTERS, name)]
            assert {(cut.threshold, cut.count) for cut in cuts} == {(threshold, count)}
            assert sorted(cut.number for cut in cuts) == list(range(1, count + 1))
    for step, member in (("jointly", "both"), ("first", "first"), ("second", "second")):
        pairs = [one.sampler[0] for name, one in found.items() if name.startswith(f"{step}.")]
        assert [(pair.rank, pair.member) for pair in pairs] == [(n, member) for n in (1, 2, 3)]


@pytest.mark.parametrize("prefix", ["", "large_"])
def test_table_5_has_an_update_of_each_model(prefix: str) -> None:
    found = steps_of(INCREMENTAL)
    bls, update, gen, boom = (f"{prefix}{name}" for name in ("bls", "update", "gen", "boom"))
    core = found[update].sampler[0]
    assert core.ratio == 0.4  # section 6.2
    assert set(core.new) == set(sets_of(INCREMENTAL, "corpora/general"))
    assert (way(found[boom]), members(INCREMENTAL, boom)) == (("MultiSlerp", "size"), [bls, update])
    both = ["corpora/english", "corpora/general"]
    for name, paths in ((bls, both[:1]), (update, both), (gen, both)):
        assert found[name].model.text == (LARGE if prefix else SMALL)
        assert [entry.path.text for entry in found[name].data] == paths


@pytest.mark.parametrize(("recipe", "printed"), [(PAPER, TABLE_6), (PAPER_4B, TABLE_4)])
def test_sets_of_bags_are_the_printed_ones(recipe: str, printed: set[tuple[int, ...]]) -> None:
    found = steps_of(recipe)
    sets = {(100,)}
    for name in [name for name in found if re.fullmatch(r"m[\d_]+|half_and_rest", name)]:
        bags = sorted(bag(recipe, one) for one in members(recipe, name))
        assert len(set(bags)) == len(bags), "one bag twice"
        assert way(found[name]) == ("MultiSlerp", "size")
        sets.add(tuple(percent for percent, _, _ in bags))
    assert sets == printed
    assert [bag(recipe, one)[1] for one in members(recipe, "half_and_rest")] == ["first", "rest"]

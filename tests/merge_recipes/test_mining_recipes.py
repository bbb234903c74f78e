"""Recipes with steps over data have the paper's numbers, and arms that differ in one thing alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from itertools import pairwise, product
from typing import Any

from emberge.data import load_catalogue
from emberge.recipes import list_shipped_recipes

from tests.support.printed import steps_of

MARGINS, COUNTS = (None, 0.95, 0.98), (4, 7, 10)
TEACHERS = {
    "mistral": "intfloat/e5-mistral-7b-instruct",
    "arctic": "Snowflake/snowflake-arctic-embed-l",
    "stella": "NovaSearch/stella_en_1.5B_v5",
}


def corpus(name: str) -> Any:
    return load_catalogue(list_shipped_recipes()["moe/nomic_v2"].path.parent / "corpora" / name)


def group(name: str, found: Mapping[str, Any]) -> list[Any]:
    return [step for id_, step in found.items() if id_.partition(".")[0] == name]


# ── Nomic Embed v2 ──────────────────────────────────────────────────────────────────────────────


def test_each_stage_of_nomic_v2_begins_where_the_one_before_ended() -> None:
    found = steps_of("moe/nomic_v2")
    order = ("rotary", "adapted", "upcycled", "pretrained", "tuned")
    for before, after in pairwise(order):
        assert found[after].model.step == before
    english, filtered = found["pretrained"].data
    assert (english.path.text, filtered.path.step) == ("corpora/english", "pairs")
    # What its authors published, they had filtered.
    assert "corpora/english" not in {entry.path.text for entry in found["pairs"].data}
    (data,) = found["clean"].data
    assert data.path.step == "distinct"
    assert {entry.path.step for entry in found["tuned"].data} == {"filtered", "mined"}


def test_it_is_scored_at_both_sizes_of_embeddings() -> None:
    found = steps_of("moe/nomic_v2")
    (beir,), (miracl,) = found["beir"].evaluators, found["miracl"].evaluators
    assert beir.dims == miracl.dims == (768, 256)


def test_every_labelled_set_gets_its_negatives_one_way_or_the_other() -> None:
    found = steps_of("moe/nomic_v2")
    names = [one.name for one in corpus("labelled").train]
    taken = [*found["filtered"].data[0].only, *found["mined"].data[0].only]
    assert sorted(taken) == sorted(names)
    # Rows with one negative or none.
    few = [name for name in names if name.startswith(("miracl_", "stackexchange"))]
    assert few == list(found["mined"].data[0].only)
    tested = {task for one in corpus("labelled").train for task in one.ind_tasks}
    assert {"MIRACLRetrieval", "NQ", "HotpotQA", "FEVER", "MSMARCO"} < tested


def test_pairs_have_a_language_each_and_none_is_listed_twice() -> None:
    for name in ("labelled", "english", "multilingual"):
        sets = corpus(name).train
        assert all(one.language and one.task == "retrieval" for one in sets)
        assert len({(one.hub, one.subset, one.split) for one in sets}) == len(sets)


# ── ablations of mining ─────────────────────────────────────────────────────────────────────────


def test_every_teacher_mines_with_every_margin_and_count() -> None:
    found = steps_of("moe/mining_ablations")
    for name, model in TEACHERS.items():
        mined = group(f"by_{name}", found)
        assert {(one.margin, one.count) for one in mined} == {*product(MARGINS, COUNTS)}
        assert {str(one.teacher.model) for one in mined} == {model}
        assert len({repr(one.teacher) for one in mined}) == 1
        for one in group(name, found):
            miner = found[one.data[0].path.step]
            assert one.data[0].path.step.startswith(f"by_{name}.")
            assert one.hard_negatives == miner.count
    (none,) = group("none", found)
    assert none.hard_negatives == 0
    assert {entry.model.step.partition(".")[0] for entry in found["scores"].models} == {
        "none",
        *TEACHERS,
    }


def test_trainings_of_the_ablations_differ_in_their_negatives_alone() -> None:
    found = steps_of("moe/mining_ablations")
    trained = [one for name in ("none", *TEACHERS) for one in group(name, found)]
    assert len(trained) == 1 + len(TEACHERS) * len(MARGINS) * len(COUNTS)
    assert len({repr(dataclasses.replace(one, data=(), hard_negatives=0)) for one in trained}) == 1


# ── the laptop's ────────────────────────────────────────────────────────────────────────────────


def test_arms_of_the_laptop_see_the_same_rows_with_other_negatives() -> None:
    found = steps_of("moe/laptop_mined")
    arms = {name: group(name, found) for name in ("own", "none", "mined", "mined_freely")}
    for trained in arms.values():
        assert sorted(one.seed for one in trained) == [1, 2, 3]
        assert {one.data[0].limit for one in trained} == {600}
    same = {
        repr(dataclasses.replace(one, data=(), hard_negatives=0, seed=0))
        for trained in arms.values()
        for one in trained
    }
    assert len(same) == 1
    negatives = {name: {one.hard_negatives for one in trained} for name, trained in arms.items()}
    assert negatives == {"own": {1}, "none": {0}, "mined": {1}, "mined_freely": {1}}
    margin, nearest = found["margin"], found["nearest"]
    assert (margin.margin, nearest.margin) == (0.95, None)
    assert dataclasses.replace(nearest, margin=0.95) == margin


def test_the_laptop_trains_as_codiembs_comparisons_do_for_retrieval() -> None:
    ours = steps_of("moe/laptop_mined")["own.seed=1"]
    theirs = steps_of("codiemb/ablations")["retrieval.seed=1"]
    assert ours.loss.default == theirs.loss.by_task["retrieval"]
    assert ours.sampler[-1].batch_size.default == theirs.sampler[-1].batch_size.by_task["retrieval"]
    shared = ("model", "seed", "hard_negatives", "max_length", "learning_rate", "epochs")
    for name in shared:
        assert getattr(ours, name) == getattr(theirs, name), name
    evaluated = steps_of("moe/laptop_mined")["scores"].evaluators
    assert evaluated == steps_of("codiemb/ablations")["scores"].evaluators


def test_the_demo_of_mining_compares_with_no_negatives() -> None:
    found = steps_of("data/mine")
    none, tuned = found["none"], found["tuned"]
    assert (none.data[0].path.step, tuned.data[0].path.step) == ("corpus", "mined")
    assert dataclasses.replace(none, data=tuned.data) == tuned
    assert found["mined"].margin == 0.95

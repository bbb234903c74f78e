"""CoDiEmb's recipe has the paper's options, tasks and data, and says what is not native."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import mteb
import pytest
from emberge import DataEntry, DataRef, load_plugins, load_recipe
from emberge.data import load_catalogue
from emberge.recipes import list_shipped_recipes
from emberge_mteb import find_instruction, find_split, list_in_domain_tasks
from emberge_mteb.hub_tasks import build_hub_tasks

PAPER = list_shipped_recipes()["codiemb/paper"]
CORPUS = PAPER.path.parent / "corpora/chinese"
# Methods' B.5: per device, of 8; what the decoder has in place of MiniCPM-Embedding's options.
BGE, E5, DECODER = "BAAI/bge-large-zh-v1.5", "intfloat/multilingual-e5-large", "Qwen/Qwen3-0.6B"
OPTIONS = {
    BGE: {"retrieval": 64, "sts": 32, "rate": 5e-5, "epochs": 5, "length": 512},
    E5: {"retrieval": 64, "sts": 32, "rate": 5e-5, "epochs": 5, "length": 512},
    DECODER: {"retrieval": 28, "sts": 32, "rate": 4e-5, "epochs": 4, "length": 1024},
}
ROLES = ("joint", "retrieval", "similarity")
SIMILARITY = ("LCQMC", "PAWSX", "AFQMC", "QBQTC", "ATEC", "BQ", "STSB")


@cache
def steps(model: str) -> dict[str, Any]:
    """The concrete steps of one backbone by what they are for."""
    found = {}
    for one in load_recipe(PAPER.path, plugins=load_plugins()).steps:
        role, _, instance = one.id.partition(".")
        of_decoder = role.startswith("decoder_")
        if of_decoder if model == DECODER else model.rpartition("/")[2] in instance:
            found[role.removeprefix("decoder_")] = one.step
    return found


def catalogue() -> Any:
    return load_catalogue(CORPUS)


# ── the recipe ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", OPTIONS)
def test_the_papers_options_stand_in_the_recipe(model: str) -> None:
    paper = OPTIONS[model]
    for role in ROLES:
        train = steps(model)[role]
        assert train.model.text == model
        assert (train.learning_rate, train.epochs) == (paper["rate"], paper["epochs"])
        assert (train.schedule, train.warmup_ratio, train.weight_decay) == ("linear", 0.03, 0)
        assert (train.positives, train.hard_negatives) == (2, 4)
        assert train.max_length.default == paper["length"]
        assert train.precision == ("bfloat16" if model == DECODER else "float32")
        sizes = train.sampler[-1].batch_size.by_task
        assert sizes == {task: 8 * paper[task] for task in ("retrieval", "sts")}
        assert train.data[0].prompt == "Instruction: {instruction} Query: "
    assert load_recipe(PAPER.path, plugins=load_plugins()).seed == 49


@pytest.mark.parametrize("model", OPTIONS)
def test_each_kind_of_task_has_the_papers_losses(model: str) -> None:
    for role in ROLES:
        losses = steps(model)[role].loss.by_task
        (infonce,) = losses["retrieval"]
        assert infonce.temperature == 0.02
        assert infonce.cross_rank
        similarity = {type(one).__name__: one for one in losses["sts"]}
        assert {name: one.weight for name, one in similarity.items()} == {
            "Pearson": 2,
            "RankKL": 5,
            "PRO": 0.5,
            "MidNCE": 1,
        }
        assert not any(one.cross_rank for one in losses["sts"])  # eqs. 4, 6, 8 and 9 on one device
        assert similarity["RankKL"].temperature == similarity["PRO"].temperature == 0.05
        (inner,) = similarity["MidNCE"].loss
        assert (similarity["MidNCE"].layer, inner.temperature) == (0.5, 0.02)


@pytest.mark.parametrize("model", OPTIONS)
def test_the_decoder_alone_attends_another_way_than_its_own(model: str) -> None:
    attention = "bidirectional" if model == DECODER else "as is"
    assert {steps(model)[role].backbone.attention for role in ROLES} == {attention}


@pytest.mark.parametrize("model", OPTIONS)
def test_specialists_train_on_one_kind_of_task_with_the_same_options(model: str) -> None:
    joint, retrieval, similarity = (steps(model)[role] for role in ROLES)
    assert [retrieval.sampler[0].tasks, similarity.sampler[0].tasks] == [("retrieval",), ("sts",)]
    assert len(joint.sampler) == 1
    for one in (retrieval, similarity):
        assert dataclasses.replace(one, sampler=joint.sampler) == joint


@pytest.mark.parametrize("model", OPTIONS)
def test_the_joint_runs_best_checkpoints_are_fused(model: str) -> None:
    found = steps(model)
    groups = {entry.group: entry.model.step for entry in found["fused"].models}
    assert {group: found_role(model, step) for group, step in groups.items()} == {
        "retrieval": "best_retrieval",
        "similarity": "best_similarity",
    }
    for kind, chosen in (("retrieval", "best_retrieval"), ("sts", "best_similarity")):
        (checkpoints,) = found[chosen].models
        assert (found_role(model, checkpoints.step), checkpoints.part) == ("joint", "checkpoints")
        assert (found[chosen].tasks, found[chosen].top) == (kind, 3)
        assert found[chosen].top < found["joint"].keep_last == OPTIONS[model]["epochs"]


def found_role(model: str, step: str | None) -> str:
    role, _, instance = str(step).partition(".")
    assert model == DECODER or model.rpartition("/")[2] in instance, "of another backbone"
    return role.removeprefix("decoder_")


@pytest.mark.parametrize("model", OPTIONS)
def test_the_joint_model_must_keep_up_with_the_specialists(model: str) -> None:
    (evaluator,) = steps(model)["scores"].evaluators
    assert evaluator.max_length == OPTIONS[model]["length"]
    demanded = {
        (rule.tasks, found_role(model, other.step), rule.margin)
        for rule in steps(model)["scores"].require
        for other in (*rule.not_worse_than, *rule.better_than)
    }
    assert demanded == {("retrieval", "retrieval", 1), ("sts", "similarity", 0)}


@pytest.mark.parametrize("model", OPTIONS)
def test_nothing_that_is_scored_chooses_a_checkpoint(model: str) -> None:
    """Development data is of the tasks' kinds, and none of the rows that mteb scores or a training sees."""
    (scored,) = steps(model)["scores"].evaluators
    tasks = {t.metadata.name: t for t in build_hub_tasks((), scored.benchmark, (), scored.only)}
    (asked,) = steps(model)["best_retrieval"].evaluators
    (miracl,) = build_hub_tasks(asked.tasks, asked.benchmark, asked.languages, asked.only)
    assert (miracl.metadata.type, miracl.hf_subsets, find_split(miracl)) == (
        "Retrieval",
        ["zh"],
        "dev",
    )
    assert not {miracl.metadata.name} & {*tasks, *trained_on()}
    (held_out,) = steps(model)["best_similarity"].evaluators
    (entry,) = held_out.data
    sources = {one.name: one for one in catalogue().train}
    assert entry.split == "validation"
    for name in entry.only:
        assert sources[name].split == "train"
        assert "validation" not in tasks[name].eval_splits
    # AFQMC's validation split is scored, and QBQTC has no other than that.
    assert {*SIMILARITY} - {*entry.only} == {"AFQMC", "QBQTC"}


# ── the corpus ──────────────────────────────────────────────────────────────────────────────────


def trained_on() -> tuple[str, ...]:
    entry = DataEntry(path=DataRef(str(CORPUS)))
    return list_in_domain_tasks([entry], lambda reference: Path(reference.text))


def test_the_corpus_has_the_papers_sets_that_are_on_the_hub() -> None:
    sets = catalogue().train
    assert Counter(one.task for one in sets) == {"retrieval": 5, "sts": 6}
    assert {one.score_range for one in sets if one.task == "retrieval"} == {None}
    ranges = {one.name: one.score_range for one in sets if one.task == "sts"}
    assert ranges == {name: (0, 1) for name in SIMILARITY if name not in ("QBQTC", "STSB")} | {
        "STSB": (0, 5)
    }
    assert {one.name for one in sets if one.symmetric} == set(ranges)
    assert all(re.fullmatch("[0-9a-f]{40}", str(one.revision)) for one in sets)
    assert "QBQTC" in (CORPUS / "datasets.yaml").read_text("utf-8").partition("format:")[0]


def test_training_and_scoring_have_the_same_instruction_and_revision() -> None:
    for one in catalogue().train:
        task = mteb.get_task((one.ind_tasks or ())[0])
        assert one.instruction == find_instruction(task)
        if one.hub == task.metadata.dataset["path"]:
            assert one.revision == task.metadata.dataset["revision"]


@pytest.mark.parametrize("model", OPTIONS)
def test_arms_that_are_compared_differ_in_losses_or_batches_alone(model: str) -> None:
    found = steps(model)
    for arm in ("infonce", "cosent"):
        assert dataclasses.replace(found[arm], loss=found["joint"].loss) == found["joint"]
    (cosent,) = found["cosent"].loss.default
    assert (type(cosent).__name__, cosent.unscored) == ("CoSENT", True)
    (of_pairs,) = found["infonce"].loss.by_task["sts"]
    (inner,) = of_pairs.loss
    assert (of_pairs.layer, inner.temperature) == (None, 0.02)
    assert dataclasses.replace(found["mixed"], sampler=found["joint"].sampler) == found["joint"]
    (mixed,) = found["mixed"].sampler
    assert (mixed.draws, mixed.batch_size) == (8, found["joint"].sampler[-1].batch_size)

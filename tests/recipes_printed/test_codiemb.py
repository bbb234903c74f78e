"""CoDiEmb (arXiv:2508.11442): its recipe has the settings that the paper prints, typed from the paper.

Batches, rates, epochs and lengths are those of its scripts: tests/merge_recipes/test_codiemb_paper.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from emberge_mteb.hub_tasks import build_hub_tasks

from tests.support.printed import sets_of, steps_of

PAPER = "codiemb/paper"
BGE, E5 = "BAAI/bge-large-zh-v1.5", "intfloat/multilingual-e5-large"
DECODER = "Qwen/Qwen3-0.6B"  # in the place of MiniCPM-Embedding
# Section 3.1: pooling by backbone, and whether the instruction's tokens are pooled.
POOLING = {BGE: ("cls", True), E5: ("mean", False), DECODER: ("mean", False)}
# Table 5 (appendix A): tasks that are scored, and those of them that are trained on.
UNTRAINED = {"CovidRetrieval", "MMarcoRetrieval", "MedicalRetrieval"}
TRAINED = {f"{one}Retrieval" for one in ("Cmedqa", "Du", "T2", "Ecom", "Video")}
TRAINED |= {"AFQMC", "ATEC", "BQ", "LCQMC", "PAWSX", "QBQTC", "STSB"}
# Tables 1 to 3: the arms that are scored.
ARMS = ("infonce", "cosent", "mixed", "joint", "retrieval", "similarity")


def step_of(model: str, role: str) -> Any:
    if model == DECODER:
        return steps_of(PAPER)[f"decoder_{role}"]
    short = model.rpartition("/")[2]
    found = [s for id_, s in steps_of(PAPER).items() if id_.startswith(f"{role}.") and short in id_]
    return found[-1]  # after the parts that it is split into


def role_of(reference: Any) -> str:
    return str(reference.step).partition(".")[0].removeprefix("decoder_")


@pytest.mark.parametrize("model", POOLING)
def test_backbones_pool_as_printed_and_every_arm_is_scored(model: str) -> None:
    for role in ARMS:
        train = step_of(model, role)
        assert train.model.text == model
        assert (train.backbone.pooling, train.backbone.include_prompt) == POOLING[model]
        assert "{instruction}" in train.data[0].prompt
    scored = {role_of(one.model) for one in step_of(model, "scores").models}
    assert scored == {*ARMS, "fused"}


@pytest.mark.parametrize("model", POOLING)
def test_fusion_is_equation_11_to_the_letter(model: str) -> None:
    """Softmax of the norms of the two specialists' changes as they are, over soups of each task (eq. 12)."""
    fused, norms = step_of(model, "fused"), step_of(model, "norms")
    groups, softmax = fused.strategy
    assert (type(groups.by).__name__, softmax.normalise) == ("Linear", "none")
    assert role_of(softmax.deltas) == "norms"
    assert [role_of(one) for one in norms.models.values()] == ["retrieval", "similarity"]
    assert norms.base.text == fused.base.text == model


@pytest.mark.parametrize("model", POOLING)
def test_tasks_that_are_scored_are_table_5(model: str) -> None:
    (evaluator,) = step_of(model, "scores").evaluators
    tasks = {t.metadata.name for t in build_hub_tasks((), evaluator.benchmark, (), evaluator.only)}
    assert tasks == TRAINED | UNTRAINED
    sets = sets_of(PAPER, "corpora/chinese").values()
    in_domain = {name for one in sets for name in one.ind_tasks or ()}
    assert in_domain & tasks == TRAINED - {"QBQTC"}, "its training rows are not on the hub"

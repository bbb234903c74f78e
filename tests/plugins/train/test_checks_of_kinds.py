"""What `check` says of encoders of sparse vectors, token vectors and pairs, before any model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from emberge import load_plugins
from emberge.recipes import check_recipe

from tests.support import tiny
from tests.support.training_data import write_training_sets


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kinds")
    tiny.kinds(root)
    tiny.transformer(root / "labels", "AutoModelForSequenceClassification", num_labels=2)
    write_training_sets(root)
    return root


def errors(place: Path, step: str, options: Mapping[str, Any]) -> str:
    report = check_recipe({"steps": {"s": {step: options}}}, load_plugins())
    return "\n".join(problem.message for problem in report.errors)


KEPT = {"keep_space": {"guide": {"model": "./old", "backbone": "text_encoder"}}}


def training(place: Path, model: str, **options: Any) -> dict[str, Any]:
    return {
        "model": str(place / model),
        "data": str(place / "find.jsonl"),
        "loss": "infonce",
        "sampler": "batch_shuffle",
        **options,
    }


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        ("reranker", {"backbone": "cross_encoder", "loss": KEPT}, "KeepSpace reads one vector"),
        ("reranker", {"backbone": "cross_encoder", "loss": "flops"}, "FLOPS reads sparse vectors"),
        (
            "reranker",
            {"backbone": "cross_encoder", "loss": {"matryoshka": {"loss": "infonce", "dims": [1]}}},
            "reads one vector a text or a vector for each token, and the model gives a score",
        ),
        ("plain", {"loss": "flops"}, "the model gives one vector a text"),
        ("colbert", {"backbone": "multi_vector", "loss": KEPT}, "gives a vector for each token"),
        ("labels", {"backbone": "cross_encoder"}, "2 outputs, which are classes"),
        (
            "colbert",
            {"backbone": {"multi_vector": {"dimension": 7}}},
            "dimension: 7 asks for others",
        ),
        (
            "reranker",
            {"backbone": "cross_encoder", "negatives": "in_batch"},
            "no scores of other rows",
        ),
        ("plain", {"loss": "embedding_distillation"}, "needs a guide"),
    ],
)
def test_a_training_that_does_not_suit_its_kind_is_refused(
    place: Path, model: str, options: dict[str, Any], said: str
) -> None:
    assert said in errors(place, "train", training(place, model, **options))


@pytest.mark.parametrize("backbone", ["multi_vector", "cross_encoder"])
def test_a_guide_of_another_kind_is_refused(place: Path, backbone: str) -> None:
    model = {"multi_vector": "colbert", "cross_encoder": "reranker"}[backbone]
    loss = {"kl_distillation": {"guide": {"model": str(place / model)}}}
    found = errors(place, "train", training(place, model, backbone=backbone, loss=loss))
    assert "a guide gives one vector a text" in found


@pytest.mark.parametrize(
    ("model", "backbone"),
    [("colbert", "multi_vector"), ("splade", "splade"), ("reranker", "cross_encoder")],
)
def test_steps_that_need_vectors_say_so(place: Path, model: str, backbone: str) -> None:
    options = {"data": "find.jsonl", "models": [str(place / model)], "backbone": backbone}
    assert "find_weights needs one vector a text" in errors(place, "find_weights", options)


def test_what_suits_its_kind_is_not_refused(place: Path) -> None:
    for model, backbone in (("colbert", "multi_vector"), ("splade", "splade")):
        assert errors(place, "train", training(place, model, backbone=backbone)) == ""

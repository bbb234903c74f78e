"""Recipes of mixtures of experts have the paper's arms and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import Any

from emberge import load_plugins, load_recipe
from emberge.recipes.parse.shipped import shipped_recipes

BATCHES = (2048, 4096, 8192, 16384)


@cache
def steps(name: str) -> Mapping[str, Any]:
    """The concrete steps of a shipped recipe by id."""
    path = shipped_recipes()[f"moe/{name}"].path
    return {one.id: one.step for one in load_recipe(path, plugins=load_plugins()).steps}


def trainings(found: Mapping[str, Any]) -> dict[str, Any]:
    return {id_: step for id_, step in found.items() if hasattr(step, "sampler")}


def test_layers_and_experts_are_compared_at_every_batch_size() -> None:
    found = steps("ablations")
    assert {id_ for id_ in found if id_.startswith("top_1.")} == {
        f"top_1.layers={layers},batch={batch}"
        for layers, batch in product(("alternate", "all"), BATCHES)
    }
    for group in ("top_2", "dense", "large"):
        assert {id_ for id_ in found if id_.startswith(f"{group}.")} == {
            f"{group}.batch={batch}" for batch in BATCHES
        }
    for id_, train in trainings(found).items():
        assert str(train.sampler[-1].batch_size.default) == id_.rpartition("=")[2]


def test_routed_models_are_the_papers_and_all_arms_train_alike() -> None:
    found = steps("ablations")
    upcycled = {id_: one for id_, one in found.items() if id_.startswith("upcycled")}
    facts = {(one.layers, one.top_k, one.experts, one.normalize_gates) for one in upcycled.values()}
    assert facts == {
        ("alternate", 1, 8, False),
        ("all", 1, 8, False),
        ("alternate", 2, 8, False),
    }
    trained = trainings(found)
    for id_, one in trained.items():
        assert (one.learning_rate, one.schedule, one.epochs) == (8e-5, "cosine", 1)
        assert one.loss.default[0].temperature == 0.02
        assert one.max_length.default == 128
        assert len(one.data) == 4
        routed = id_.startswith("top_")
        assert getattr(one.backbone, "balance", None) == (1.0 if routed else None)
        encoder = one.backbone.inner if routed else one.backbone
        assert encoder.prompts == {"query": "search_query: ", "document": "search_document: "}
    for id_, one in trained.items():
        if id_.startswith("top_1."):
            layers = id_.partition("layers=")[2].partition(",")[0]
            assert one.model.step == f"upcycled.layers={layers}"


def test_dense_and_large_controls_are_scored_beside_the_mixtures() -> None:
    found = steps("ablations")
    scored = {entry.model.step.partition(".")[0] for entry in found["scores"].models}
    assert scored == {"dense", "top_1", "top_2", "large"}
    assert found["scores"].models[0].model.step.startswith("dense")
    assert found["scores"].evaluators[0].benchmark == "BEIR"

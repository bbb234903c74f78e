"""Recipes of mixtures of experts have the paper's arms and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import Any

import pytest
from emberge import DatasetInfo, load_plugins, load_recipe
from emberge.data import load_catalogue
from emberge.recipes import shipped_recipes
from emberge_train import Temperature

BATCHES = (2048, 4096, 8192, 16384)
SIZES = {"many": 1000, "some": 100, "few": 10}


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


def test_the_rotary_backbone_is_adapted_with_the_papers_numbers() -> None:
    found = steps("rope_xlmr")
    rotary, adapted = found["rotary"], found["adapted"]
    assert (rotary.model.text, adapted.model.step) == ("FacebookAI/xlm-roberta-base", "rotary")
    assert (rotary.rope_theta, rotary.max_length) == (10_000, 2048)
    assert adapted.max_length.default == 2048
    (mlm,) = adapted.loss.default
    assert (mlm.share, mlm.masked, mlm.random) == (0.3, 0.8, 0.1)
    assert (adapted.max_steps, adapted.learning_rate, adapted.schedule) == (10_000, 4e-4, "linear")
    assert adapted.warmup_ratio == 0.1
    assert (adapted.adam_beta1, adapted.adam_beta2, adapted.adam_epsilon) == (0.9, 0.98, 1e-6)
    assert (adapted.weight_decay, adapted.max_grad_norm) == (0, None)
    assert adapted.sampler[-1].batch_tokens.default == 4096 * 2048


def test_languages_are_sampled_by_their_size_to_the_power_of_three_tenths() -> None:
    """T-C2."""
    heat = steps("rope_xlmr")["adapted"].sampler[-1].temperature
    sampler = Temperature(temperature=heat, tail="wrap")
    languages = {DatasetInfo(n, "text", size): range(size) for n, size in SIZES.items()}
    shares = sampler.shares(sampler.batches_by_dataset(languages, 0))
    assert shares == pytest.approx([0.5707, 0.2860, 0.1433], abs=5e-5)


def test_the_wikipedias_are_texts_of_forty_languages() -> None:
    path = shipped_recipes()["moe/rope_xlmr"].path.parent / "corpora/wikipedia"
    sets = load_catalogue(path).train
    assert len({one.name for one in sets}) == 40
    assert {(one.hub, one.task, one.columns.anchor) for one in sets} == {
        ("wikimedia/wikipedia", "text", "text")
    }
    assert all(one.subset == f"20231101.{one.name}" for one in sets)

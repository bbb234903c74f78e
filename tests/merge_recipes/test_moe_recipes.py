"""Recipes of mixtures of experts have the paper's arms and numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from emberge import DatasetInfo
from emberge.data import load_catalogue
from emberge.recipes import list_shipped_recipes
from emberge_train import Proportional

from tests.support.printed import steps_of

SIZES = {"many": 1000, "some": 100, "few": 10}


def trainings(found: Mapping[str, Any]) -> dict[str, Any]:
    return {id_: step for id_, step in found.items() if hasattr(step, "sampler")}


def sizes(found: Mapping[str, Any], group: str) -> set[int]:
    """The batch sizes of a group of trainings, which are those that its instances are named after."""
    batches = {
        int(id_.rpartition("=")[2]): one.sampler[-1].batch_size.default
        for id_, one in found.items()
        if id_.startswith(f"{group}.")
    }
    assert all(named == used for named, used in batches.items())
    return set(batches)


@pytest.mark.parametrize(
    ("recipe", "groups"),
    [
        ("ablations", ("dense", "routed_6", "routed_12", "large")),
        ("multilingual", ("dense", "routed_1", "routed_2", "large")),
    ],
)
def test_every_arm_is_trained_alike_at_every_batch_size_and_scored(
    recipe: str, groups: tuple[str, ...]
) -> None:
    found = steps_of(f"moe/{recipe}")
    trained = trainings(found)
    assert {id_.partition(".")[0] for id_ in trained} == set(groups)
    assert len({frozenset(sizes(found, group)) for group in groups}) == 1
    alike = {
        repr(dataclasses.replace(one, model=groups[0], backbone=None, sampler=()))
        for one in trained.values()
    }
    assert len(alike) == 1
    for id_, one in trained.items():
        routed = id_.startswith("routed_")
        assert getattr(one.backbone, "balance", None) == (1.0 if routed else None)
        encoder = one.backbone.inner if routed else one.backbone
        assert encoder.prompts == {"query": "search_query: ", "document": "search_document: "}
        if routed:
            assert one.model.step == id_.partition(".")[0].replace("routed", "upcycled")
    evaluations = [
        one for one in found.values() if hasattr(one, "evaluators") and hasattr(one, "models")
    ]
    for evaluation in evaluations:
        scored = [entry.model.step.partition(".")[0] for entry in evaluation.models]
        assert set(scored) == set(groups)
        assert scored[0] == "dense"


def test_languages_are_sampled_by_their_size_to_the_power_of_three_tenths() -> None:
    """T-C2."""
    heat = steps_of("moe/rope_xlmr")["adapted"].sampler[-1].temperature
    sampler = Proportional(temperature=heat, tail="wrap")
    languages = {DatasetInfo(n, "text", size): range(size) for n, size in SIZES.items()}
    shares = sampler.compute_shares(sampler.cut_dataset_batches(languages, 0))
    assert shares == pytest.approx([0.5707, 0.2860, 0.1433], abs=5e-5)


def test_the_wikipedias_are_texts_of_forty_languages() -> None:
    path = list_shipped_recipes()["moe/rope_xlmr"].path.parent / "corpora/wikipedia"
    sets = load_catalogue(path).train
    assert len({one.name for one in sets}) == 40
    assert {(one.hub, one.task, one.columns.anchor) for one in sets} == {
        ("wikimedia/wikipedia", "text", "text")
    }
    assert all(one.subset == f"20231101.{one.name}" for one in sets)

"""The similarity losses together, as a recipe has them: written, checked, and trained with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from emberge import Loss, Machine, check_recipe, load_plugins, parse_recipe, run_recipe
from emberge_codiemb.mid_nce import MidNCE
from emberge_codiemb.pair_losses import PRO, Pearson, RankKL
from emberge_train import InfoNCE

from tests.support.result_folders import folders
from tests.support.training_data import retrieval, similarity

PLUGINS = load_plugins()
PAPER = (
    "[{pearson: {weight: 2}}, {rank_kl: {weight: 5}}, {pro: {weight: 0.5}}, {mid_nce: {weight: 1}}]"
)
RECIPE = """
steps:
  trained:
    train:
      model: ./base
      data:
        - {path: ./find.jsonl, task: retrieval}
        - {path: ./alike.jsonl, task: sts}
      sampler: {mixed: {draws: 2, batch_size: 8}}
      max_steps: 2
      loss:
        by_task:
          retrieval: infonce
          sts: LOSSES
"""
LINE = 1 + RECIPE.splitlines().index("      loss:")


@pytest.fixture
def place(bert: Path, tmp_path: Path) -> Path:
    """A folder with a model, pairs of retrieval and scored pairs."""
    (tmp_path / "base").symlink_to(bert)
    found = [{"anchor": e.anchor, "positive": e.positives[0]} for e in retrieval().rows]
    write(tmp_path / "find.jsonl", found)
    write_scores(tmp_path, lambda i: 5 * (i % 5) / 4)
    return tmp_path


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_scores(place: Path, score: Callable[[int], float], count: int = 24) -> None:
    rows = [
        {"sentence1": e.anchor, "sentence2": e.positives[0], "score": score(i)}
        for i, e in enumerate(similarity(count).rows)
    ]
    write(place / "alike.jsonl", rows)


def recipe(place: Path, losses: str) -> Any:
    return parse_recipe(RECIPE.replace("LOSSES", losses), PLUGINS, path=place / "recipe.yaml")


def faults(place: Path, losses: str) -> dict[str, str]:
    """The errors of a check, by their place in the recipe's folder."""
    errors = check_recipe(recipe(place, losses), PLUGINS).errors
    return {Path(problem.where).name: problem.message for problem in errors}


# ── as it is written ────────────────────────────────────────────────────────────────────────────


def test_the_papers_list_of_similarity_losses() -> None:
    (step,) = recipe(Path(), PAPER).steps
    assert step.step.loss.by_task["sts"] == (
        Pearson(weight=2),
        RankKL(weight=5),
        PRO(weight=0.5),
        MidNCE(weight=1, layer=0.5, least_score=1.0, loss=(InfoNCE(),)),
    )


@pytest.mark.parametrize(
    ("written", "loss"),
    [
        ("{mid_nce: {layer: null}}", MidNCE(layer=None, loss=(InfoNCE(),))),
        ("{mid_nce: 0.25}", MidNCE(layer=0.25, loss=(InfoNCE(),))),
        (
            "{mid_nce: {loss: [{infonce: {temperature: 0.1}}, {infonce: {weight: 0.5}}]}}",
            MidNCE(loss=(InfoNCE(temperature=0.1), InfoNCE(weight=0.5))),
        ),
    ],
)
def test_a_layer_or_none_and_inner_losses(written: str, loss: Loss) -> None:
    (step,) = recipe(Path(), written).steps
    assert step.step.loss.by_task["sts"] == (loss,)


# ── before a training ───────────────────────────────────────────────────────────────────────────


def test_the_list_suits_scored_pairs(place: Path) -> None:
    assert faults(place, PAPER) == {}


def test_a_set_without_scores_is_named(place: Path) -> None:
    text = RECIPE.replace("retrieval: infonce", "retrieval: pearson").replace("LOSSES", PAPER)
    report = check_recipe(parse_recipe(text, PLUGINS, path=place / "recipe.yaml"), PLUGINS)
    (problem,) = report.errors
    assert problem.where.endswith(f"recipe.yaml:{LINE}")
    assert "'find'" in problem.message
    assert "scores" in problem.message


# ── trained ─────────────────────────────────────────────────────────────────────────────────────


def test_a_step_mixes_retrieval_and_similarity(place: Path) -> None:
    done = folders(
        run_recipe(recipe(place, PAPER), place / "out", PLUGINS, machine=Machine(), quiet=True)
    )
    names = {
        name
        for line in (done["trained"] / "metrics.jsonl").read_text().splitlines()
        for name in [json.loads(line)["name"]]
    }
    assert "loss/alike+find" in names
    assert (done["trained"] / "model.safetensors").is_file()

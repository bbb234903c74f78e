"""What is seen of a training, and what follows from it: from a recipe to files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from emberge import (
    EmbergeError,
    Machine,
    Plugins,
    check_recipe,
    load_plugins,
    parse_recipe,
    run_recipe,
)

from tests.support import pair_evaluator
from tests.support.result_folders import folders, read_details
from tests.support.training_data import write_training_sets

HEADS = """
steps:
  member:
    train:
      model: ./base
      data:
        - {path: ./find.jsonl, task: retrieval}
        - {path: ./alike.jsonl, task: sts}
      sampler: {batch_shuffle: {batch_size: 8}}
      loss: {default: {infonce: {temperature: 0.1}}, by_task: {sts: cosent}}
      learning_rate: 1.0e-3
      token_budget: 80
"""
EVALUATE = """
      max_steps: 12
      evaluate: {every: 2, evaluators: {pairs: {data: ./held.jsonl}}, patience: 3}
"""


@pytest.fixture
def plugins() -> Plugins:
    found = load_plugins(block=())
    found.register(pair_evaluator, "pairs")
    pair_evaluator.SCORED.clear()
    return found


def _laid_out(root: Path, bert: Path) -> Path:
    """A folder with a model, two training sets and pairs to score on."""
    (root / "base").symlink_to(bert)
    write_training_sets(root)
    held = (root / "find.jsonl").read_text().splitlines()[:20]
    (root / "held.jsonl").write_text("\n".join(held) + "\n")
    return root


@pytest.fixture
def place(bert: Path, tmp_path: Path) -> Path:
    return _laid_out(tmp_path, bert)


def _run(place: Path, text: str, plugins: Plugins, out: str = "out") -> dict[str, Path]:
    recipe = parse_recipe(HEADS + text, plugins, path=place / "recipe.yaml")
    return folders(run_recipe(recipe, place / out, plugins, machine=Machine(), quiet=True))


def _faults(place: Path, text: str, plugins: Plugins) -> str:
    recipe = parse_recipe(HEADS + text, plugins, path=place / "recipe.yaml")
    return "\n".join(str(problem) for problem in check_recipe(recipe, plugins).errors)


def _logged(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _weights(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_numbers_of_every_kind_are_logged_by_step(place: Path, plugins: Plugins) -> None:
    folder = _run(place, "      max_steps: 8\n      logging_steps: 4\n", plugins)["member"]
    rows = _logged(folder)
    assert {row["at"] for row in rows} == {4, 8}
    last = {row["name"]: row["value"] for row in rows if row["at"] == 8}
    tasks = {name.removeprefix("task_loss/") for name in last if name.startswith("task_loss/")}
    assert tasks == {"retrieval", "sts"}
    assert last["task_loss/sts"] == last["loss/alike"]
    assert 0 <= last["padding_share"] < 1
    assert last["tokens_per_second"] > 0
    # This process holds torch, and less than the machine could.
    assert 0.05 < last["memory_gib"] < 1000
    assert "gpu_memory_gib" not in last


@dataclass(frozen=True)
class Seen:
    """A training that was scored on its way, its scores by a step after it, and what was told of both."""

    place: Path
    results: dict[str, Path]
    scored: list[str]

    @property
    def scores(self) -> dict[int, float]:
        return dict(read_details(self.results["member"]).scores_on_the_way)


@pytest.fixture(scope="module")
def seen(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    found = load_plugins(block=())
    found.register(pair_evaluator, "pairs")
    pair_evaluator.SCORED.clear()
    place = _laid_out(tmp_path_factory.mktemp("seen"), bert)
    scores = """
  scores:
    evaluate: {models: $member, evaluators: {pairs: {data: ./held.jsonl}}}
"""
    return Seen(place, _run(place, EVALUATE + scores, found), [*pair_evaluator.SCORED])


def test_a_training_ends_early_and_leaves_its_best_model(seen: Seen, plugins: Plugins) -> None:
    folder, scores = seen.results["member"], seen.scores
    details = read_details(folder)
    best = max(scores, key=lambda step: (scores[step], -step))
    assert details.result_step == best
    assert details.steps == max(scores)
    assert [f"member/step-{step}" for step in scores] == seen.scored
    logged = {(row["name"], row["at"]): row["value"] for row in _logged(folder)}
    for step, score in scores.items():
        assert logged["score", step] == score
        both = logged["score/Pairs", step], logged["score/Reversed", step]
        assert score == pytest.approx(sum(both) / 2)
    assert not list(folder.glob("scored*"))
    text = f"      max_steps: 12\n      save_steps: {best}\n      keep_last: 12\n"
    plain = _run(seen.place, text, plugins, "plain")["member"]
    assert _weights(folder) == _weights(plain / f"checkpoints/step-{best}")


def test_a_step_evaluate_knows_the_score_of_the_result(seen: Seen) -> None:
    """Nothing was scored but on the way."""
    written = json.loads((seen.results["scores"] / "scores.json").read_text())["values"]["member"]
    best = seen.scores[read_details(seen.results["member"]).result_step]
    assert sum(written.values()) / 2 == pytest.approx(best)


def test_one_task_alone_may_decide(place: Path, plugins: Plugins) -> None:
    text = EVALUATE.replace("patience: 3", "tasks: Reversed")
    folder = _run(place, text, plugins)["member"]
    names = {row["name"] for row in _logged(folder) if row["name"].startswith("score")}
    assert names == {"score", "score/Reversed"}
    wrong = EVALUATE.replace("patience: 3", "tasks: Revesed")
    with pytest.raises(
        EmbergeError, match="`tasks: Revesed` means none of the tasks; did you mean"
    ):
        _run(place, wrong, plugins, "wrong")


def test_a_word_for_no_task_is_found_before_the_training(place: Path, plugins: Plugins) -> None:
    def errors(word: str) -> str:
        return _faults(place, EVALUATE.replace("patience: 3", f"tasks: {word}"), plugins)

    # Domains are known in the run.
    for word in ("all", "kinds", "ind", "ood", "retrieval", "Reversed"):
        assert not errors(word)
    assert "recipe.yaml:15" in errors("retrival")
    assert "did you mean 'retrieval'?" in errors("retrival")
    assert "there are all, kinds, ind, ood, elsewhere, retrieval, Pairs, Reversed" in errors("zzz")


def test_an_adapter_is_scored_on_its_base(place: Path, plugins: Plugins) -> None:
    backbone = "      backbone: {text_encoder: {lora: {rank: 2}}}\n"
    folder = _run(place, EVALUATE + backbone, plugins)["member"]
    details = read_details(folder)
    assert (folder / "adapter_config.json").is_file()
    assert not (folder / "model.safetensors").exists()
    assert len(details.scores_on_the_way) == len(pair_evaluator.SCORED) >= 3

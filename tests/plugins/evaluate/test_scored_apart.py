"""An evaluation of several models is a step for each of them and one that compares them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from emberge import (
    Evaluator,
    Model,
    Plugins,
    Preflight,
    Problem,
    TaskInfo,
    TaskScore,
    Units,
    Workspace,
    check_recipe,
    hookimpl,
    load_plugins,
    parse_recipe,
    run_recipe,
)
from emberge.recipes import Recipe

from tests.support.result_folders import folders

asked: list[str] = []
NOT_KEPT = TaskInfo("whim", "sts", "cosine_spearman")  # without a fingerprint no store keeps it
TASKS = (TaskInfo("code", "retrieval", "ndcg_at_10", fingerprint="a"), NOT_KEPT)


@dataclass(frozen=True, kw_only=True)
class ByContent(Evaluator):
    """Scores that depend on a model's weights alone."""

    def plan(self, workspace: Workspace) -> Sequence[TaskInfo]:
        return TASKS

    def check(self, context: Preflight) -> Iterator[Problem]:
        yield context.warning("the evaluator was asked")

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
    ) -> Iterator[TaskScore]:
        for task in tasks:
            asked.append(f"{model.name} {task.name}")
            values = [int(digit, 16) / 16 for digit in model.fingerprint[:20]]
            units = Units("query", "mean", values)
            yield TaskScore(task, sum(values) / len(values), units, {"of": model.fingerprint})


@pytest.fixture
def plugins() -> Plugins:
    asked.clear()
    module = ModuleType("by_content")

    @hookimpl
    def register_evaluators() -> Mapping[str, type[Evaluator]]:
        return {"by_content": ByContent}

    vars(module)["register_evaluators"] = register_evaluators
    found = load_plugins()
    found.register(module, "by_content", "by_content", "1.0")
    return found


def recipe(plugins: Plugins, models: Sequence[Path | str], more: str = "") -> Recipe:
    named = ", ".join(map(str, models))
    text = f"steps: {{scores: {{evaluate: {{models: [{named}], evaluators: by_content{more}}}}}}}"
    return parse_recipe(text, plugins)


def test_each_model_is_scored_in_a_step_of_its_own(
    berts: list[Path], plugins: Plugins, tmp_path: Path
) -> None:
    read = recipe(plugins, berts)
    *parts, whole = read.steps
    assert len(parts) == 3
    assert whole.id == "scores"
    assert whole.needs == tuple(part.id for part in parts)
    made = folders(run_recipe(read, tmp_path / "apart", plugins, quiet=True))
    assert asked == [f"{bert.name} {task.name}" for bert in berts for task in TASKS]
    # What one model alone is scored with is no other than what the parts found.
    together = json.loads((made["scores"] / "scores.json").read_text())
    one = recipe(plugins, berts[1:2])
    alone = folders(run_recipe(one, tmp_path / "alone", plugins, quiet=True))
    own = json.loads((alone["scores"] / "scores.json").read_text())
    assert together["values"][berts[1].name] == own["values"][berts[1].name]
    assert list(alone) == ["scores"]


def test_a_fault_is_told_once_and_at_its_line(berts: list[Path], plugins: Plugins) -> None:
    text = f"""steps:
  scores:
    evaluate:
      evaluators: by_content
      models:
        - {berts[0]}
        - {berts[1]}
        - ./nowhere
"""
    read = parse_recipe(text, plugins, path=berts[0].parent / "recipe.yaml")
    told = [str(problem) for problem in check_recipe(read, plugins).problems]
    assert len(told) == 2
    assert sum("the evaluator was asked" in one for one in told) == 1
    (fault,) = [one for one in told if "nowhere" in one]
    assert "recipe.yaml:8: './nowhere': there is no such folder" in fault

"""Scores are kept for all steps; those of an evaluator from an edited plugin file are computed again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from emberge import Model, load_plugins
from emberge.evaluating import score_tasks

EVALUATOR = '''
from dataclasses import dataclass

from emberge import Evaluator, TaskInfo, TaskScore, hookimpl


@dataclass(frozen=True, kw_only=True)
class Constant(Evaluator):
    """Give every model the same score."""

    def plan(self, workspace):
        return [TaskInfo("constant", "text", "accuracy", fingerprint="f" * 32)]

    def evaluate(self, model, tasks, workspace):
        return [TaskScore(task, 0.25) for task in tasks]


@hookimpl
def register_evaluators():
    return {"constant": Constant}
'''


def score(place: Path) -> float:
    """Return the score that the evaluator in `place` gives, or that is in the store of an earlier call."""
    plugins = load_plugins([place / "constant.py"], block=["*"])

    @contextmanager
    def whole_model(model: Model) -> Iterator[Path]:
        yield model.folder

    workspace = SimpleNamespace(store=place / "store", plugins=plugins, whole_model=whole_model)
    evaluator = plugins.find("constant", "evaluator").type()
    model = Model("m", place, "a" * 32)
    return score_tasks(evaluator, model, evaluator.plan(workspace), workspace)["constant"].score


def test_a_score_of_an_edited_evaluator_is_computed_again(tmp_path: Path) -> None:
    (tmp_path / "constant.py").write_text(EVALUATOR)
    assert (score(tmp_path), score(tmp_path)) == (0.25, 0.25)
    assert len(list((tmp_path / "store").rglob("*.json"))) == 1
    (tmp_path / "constant.py").write_text(EVALUATOR.replace("0.25", "0.75"))
    assert score(tmp_path) == 0.75

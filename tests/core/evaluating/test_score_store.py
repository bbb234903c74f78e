"""Scores are kept for all steps; those of an evaluator from an edited plugin file are computed again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from emberge import Model, load_plugins
from emberge.evaluating import score_tasks

EVALUATOR = '''
from dataclasses import dataclass

from emberge import Evaluator, Loss, TaskInfo, TaskScore, hookimpl


@dataclass(frozen=True, kw_only=True)
class Constant(Evaluator):
    """Give every model the same score, or the revision of its loss."""

    loss: Loss | None = None

    def plan(self, workspace):
        return [TaskInfo("constant", "text", "accuracy", fingerprint="f" * 32)]

    def evaluate(self, model, tasks, workspace):
        return [TaskScore(task, 0.25 if self.loss is None else self.loss.revision) for task in tasks]


@hookimpl
def register_evaluators():
    return {"constant": Constant}
'''


LOSS = '''
from dataclasses import dataclass

from emberge import Loss, hookimpl


@dataclass(frozen=True, kw_only=True)
class Mine(Loss):
    """Compute nothing."""

    revision = 2

    def __call__(self, batch, parameters):
        return batch.anchor.sum()


@hookimpl
def register_losses():
    return {"mine": Mine}
'''


def score(place: Path, *names: str) -> float:
    """Return the score that the evaluator in `place` gives, or that is in the store of an earlier call.

    `names` are further plugin files: one that adds the evaluator's loss.
    """
    files = [place / f"{name}.py" for name in ("constant", *names)]
    plugins = load_plugins(files, block=["*"])

    @contextmanager
    def whole_model(model: Model) -> Iterator[Path]:
        yield model.folder

    workspace: Any = SimpleNamespace(
        store=place / "store", plugins=plugins, whole_model=whole_model
    )
    options = {"loss": plugins.find("mine", "loss").type()} if names else {}
    evaluator = plugins.find("constant", "evaluator").type(**options)
    model = Model("m", place, "a" * 32)
    return score_tasks(evaluator, model, evaluator.plan(workspace), workspace)["constant"].score


def test_a_score_of_an_edited_evaluator_is_computed_again(tmp_path: Path) -> None:
    (tmp_path / "constant.py").write_text(EVALUATOR)
    assert (score(tmp_path), score(tmp_path)) == (0.25, 0.25)
    assert len(list((tmp_path / "store").rglob("*.json"))) == 1
    (tmp_path / "constant.py").write_text(EVALUATOR.replace("0.25", "0.75"))
    assert score(tmp_path) == 0.75


def test_a_score_by_an_edited_loss_of_the_evaluator_is_computed_again(tmp_path: Path) -> None:
    (tmp_path / "constant.py").write_text(EVALUATOR)
    (tmp_path / "losses.py").write_text(LOSS)
    assert score(tmp_path, "losses") == 2
    (tmp_path / "losses.py").write_text(LOSS.replace("revision = 2", "revision = 3"))
    assert score(tmp_path, "losses") == 3

"""`scores.json`: what is written is read back whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emberge import DataError, Model, load_plugins
from emberge.contracts import TrainingCost
from emberge_evaluate.scores import ColumnKey, Comparison, ScoredTask, Scores, Verdict
from emberge_evaluate.scores_file import read_scores, write_scores
from emberge_evaluate.scoring import score_tasks

PLAIN = Scores(
    fingerprints={"base": "a" * 8, "m.seed=1": "b" * 8, "m.seed=2": "c" * 8},
    tasks=(
        ScoredTask("code", "retrieval", "ndcg_at_10", ("en",), "in", "cut", "query", 9),
        ScoredTask("topics", "clustering", "v_measure"),
    ),
    values={name: {"code": 0.5, "topics": 0.25} for name in ("base", "m.seed=1", "m.seed=2")},
    intervals={"base": {"code": (0.4, 0.6), "task": (0.3, 0.5)}, "m.seed=1": {}, "m.seed=2": {}},
    means={name: {"task": 0.375, "type": 0.375} for name in ("base", "m.seed=1", "m.seed=2")},
    comparisons=(
        Comparison("m.seed=1", "base", "task", 0.0, (-0.1, 0.1)),
        Comparison("m.seed=1", "base", "topics", 0.0),
    ),
    forgetting=(Comparison("base", "m.seed=1", "out", 0.02, (0.01, 0.03)),),
    requirements=(Verdict("m not worse than base", True, "m", "base", "not_worse_than"),),
    costs={"m.seed=1": TrainingCost(1.5, 30, 20), "m.seed=2": TrainingCost(0.5, 10, 20)},
    columns={"m.seed=2": ColumnKey("m.seed=2", 256)},
)
POOLED = Scores(
    fingerprints={"base": "", "m": ""},
    tasks=PLAIN.tasks,
    values={name: {"code": 0.5, "topics": 0.25} for name in ("base", "m")},
    intervals={"base": {}, "m": {"code": (0.4, 0.6), "task": (0.3, 0.5)}},
    means={name: {"task": 0.375, "type": 0.375} for name in ("base", "m")},
    comparisons=(Comparison("m", "base", "type", 0.1, by_seed={"seed=1": 0.1, "seed=2": 0.1}),),
    forgetting=(Comparison("base", "m", "out", 0.02, (0.01, 0.03)),),
    spreads={"base": {}, "m": {"code": 0.01, "task": 0.02}},
    members={"base": {"1": "base"}, "m": {"seed=1": "m.seed=1", "seed=2": "m.seed=2"}},
    costs={"m": TrainingCost(1.5, 30, 20)},
)


def test_scores_are_read_as_they_were_written(tmp_path: Path) -> None:
    scores = replace(PLAIN, pooled=POOLED)
    write_scores(tmp_path, scores)
    assert read_scores(tmp_path) == scores


def test_what_is_no_number_is_left_out(tmp_path: Path) -> None:
    values = {**PLAIN.values, "base": {"code": float("nan"), "topics": 0.25}}
    undefined = Comparison("merged", "base", "code", float("nan"), (float("nan"), float("nan")))
    clear = Comparison("merged", "base", "topics", 0.5, (0.25, 0.75))
    assert (undefined.verdict, clear.verdict) == ("unknown", "better")
    lost = replace(PLAIN, values=values, comparisons=(undefined, clear), forgetting=(undefined,))
    write_scores(tmp_path, lost)
    found = read_scores(tmp_path)
    assert (found.comparisons, found.forgetting) == ((clear,), ())
    assert found.find_value("base", "code") is None
    assert found.find_value("base", "topics") == 0.25


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    path = write_scores(tmp_path, PLAIN)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(DataError, match=path.name):
        read_scores(tmp_path)


def test_normalised_ranks_are_those_of_the_paper() -> None:
    """Three tasks and four models; on the last task all are equal."""
    tasks = [[80, 70, 75, 60], [0.5, 0.9, 0.7, 0.7], [10, 10, 10, 10]]
    names = ("a", "b", "c", "d")
    scores = Scores(
        fingerprints=dict.fromkeys(names, ""),
        tasks=tuple(ScoredTask(f"t{i}") for i in range(3)),
        values={
            name: {f"t{i}": row[n] for i, row in enumerate(tasks)} for n, name in enumerate(names)
        },
    )
    assert dict(scores.ranks) == pytest.approx({"a": 1.0, "b": 0.5, "c": 0.75, "d": 1.5})
    assert not replace(scores, values={**scores.values, "d": {}}).ranks, "a score is missing"


def test_models_whose_weights_are_unknown_do_not_share_requirements() -> None:
    scores = replace(
        PLAIN,
        fingerprints={"one": "", "other": ""},
        requirements=(Verdict("one", True, "one"), Verdict("other", False, "other")),
        pooled=None,
    )
    assert [verdict.text for verdict in scores.list_verdicts("one")] == ["one"]


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

    def __call__(self, batch):
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


def test_a_score_of_an_edited_evaluator_or_loss_is_computed_again(tmp_path: Path) -> None:
    (tmp_path / "constant.py").write_text(EVALUATOR)
    assert (score(tmp_path), score(tmp_path)) == (0.25, 0.25)
    assert len(list((tmp_path / "store").rglob("*.json"))) == 1
    (tmp_path / "constant.py").write_text(EVALUATOR.replace("0.25", "0.75"))
    assert score(tmp_path) == 0.75
    (tmp_path / "constant.py").write_text(EVALUATOR)
    (tmp_path / "losses.py").write_text(LOSS)
    assert score(tmp_path, "losses") == 2
    (tmp_path / "losses.py").write_text(LOSS.replace("revision = 2", "revision = 3"))
    assert score(tmp_path, "losses") == 3

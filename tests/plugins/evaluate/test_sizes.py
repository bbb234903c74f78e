"""Each size of embeddings is scored from one encoding, and compared as models are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import (
    Artifact,
    CheckpointError,
    DataRef,
    Evaluator,
    Model,
    ModelRef,
    RecipeError,
    TaskInfo,
    TaskScore,
    Units,
)
from emberge.encoding import TextEmbedder
from emberge_evaluate import read_scores
from emberge_evaluate.columns import find_incomplete_column_problems, read_variables
from emberge_evaluate.evaluate_step import Evaluate, EvaluatedModel
from emberge_evaluate.requirements import Requirement
from emberge_mteb import EvalEntry, Mteb

from tests.support.bench import BACKBONE, Bench, embedded_texts, model_at, write_catalogue
from tests.support.glance import Glance

WIDTH = 32  # of the tiny models
KINDS = ("retrieval", "sts")


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_catalogue(tmp_path_factory.mktemp("sets"), KINDS)


def mteb(catalogue: Path, *dims: int) -> Mteb:
    return Mteb(data=(EvalEntry(path=DataRef(str(catalogue))),), backbone=BACKBONE, dims=dims)


def scored(evaluator: Mteb, model: Model, bench: Bench) -> dict[str, TaskScore]:
    plan = evaluator.plan(bench)
    return {score.task.label: score for score in evaluator.evaluate(model, plan, bench)}


# ── mteb ────────────────────────────────────────────────────────────────────────────────────────


def test_a_size_is_the_score_of_embeddings_cut_to_it(
    catalogue: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = scored(mteb(catalogue, WIDTH, 8), model_at(bert), Bench(tmp_path))
    assert list(found) == ["retrieval@32", "retrieval@8", "sts@32", "sts@8"]
    original = TextEmbedder.embed

    def embed(self: TextEmbedder, texts: Any, **options: Any) -> Any:
        first = np.asarray(original(self, texts, **options), dtype=np.float32)[:, :8]
        return first / np.linalg.norm(first, axis=1, keepdims=True)

    monkeypatch.setattr(TextEmbedder, "embed", embed)
    cut = scored(mteb(catalogue), model_at(bert), Bench(tmp_path))
    fingerprints = {score.task.fingerprint for score in (*found.values(), *cut.values())}
    assert len(fingerprints) == 6
    for kind in KINDS:
        assert found[f"{kind}@8"].score == cut[kind].score
        assert found[f"{kind}@8"].units == cut[kind].units
        assert found[f"{kind}@8"].units != found[f"{kind}@32"].units


def test_all_sizes_come_from_one_encoding(
    catalogue: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = embedded_texts(monkeypatch)
    monkeypatch.setattr("emberge_mteb.models._REMEMBERED_BYTES", 0)  # as if each task were large
    scored(mteb(catalogue, 16, 8, 4), model_at(bert), Bench(tmp_path))
    alone: list[str] = list(seen)
    seen.clear()
    scored(mteb(catalogue, 16), model_at(bert), Bench(tmp_path))
    assert alone == seen


def test_a_size_above_the_models_is_named_before_any_work(
    catalogue: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Here(Glance):
        def model(self, reference: ModelRef) -> Path:  # type: ignore[override]
            return bert

        def data(self, reference: Any) -> Path:  # type: ignore[override]
            return catalogue

    step = Evaluate(
        models=(EvaluatedModel(model=ModelRef("./bert")),), evaluators=(mteb(catalogue, 64),)
    )
    (fault,) = (p for p in step.check(Here()) if p.severity == "error")
    assert fault.where == "evaluators"
    assert "./bert" in fault.message
    assert "32 numbers" in fault.message
    monkeypatch.setattr(TextEmbedder, "embed", None)
    with pytest.raises(CheckpointError, match="dims"):
        scored(mteb(catalogue, 64), model_at(bert), Bench(tmp_path))


# ── the step ────────────────────────────────────────────────────────────────────────────────────

TASKS = (
    TaskInfo("code", "retrieval", "ndcg_at_10", domain="in", fingerprint="a"),
    TaskInfo("pairs", "sts", "cosine_spearman", domain="out", fingerprint="b"),
)


@dataclass(frozen=True, kw_only=True)
class Sized(Evaluator):
    """Scores that fall by a known amount at 256 numbers."""

    def plan(self, workspace: Any) -> Sequence[TaskInfo]:
        return [task.at_size(size) for task in TASKS for size in (768, 256)]

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Any
    ) -> Iterator[TaskScore]:
        gain = 0.1 * model.name.startswith("new") + 0.01 * int(
            read_variables(model.name).get("seed", 1)
        )
        for task in tasks:
            values = np.random.default_rng(3).random(60) * 0.4 + 0.3 + gain
            values -= 0.05 * (task.size == 256)
            yield TaskScore(task, float(values.mean()), Units("query", "mean", values.tolist()))


def evaluated(root: Path, *names: str, **options: Any) -> tuple[dict[str, Any], Bench]:
    bench = Bench(root)
    for name in names:
        bench.many[f"${name}"] = [Model(name, root, f"hash-{name}", Artifact(kind="model"))]
    entries = tuple(EvaluatedModel(model=ModelRef(text)) for text in bench.many)
    Evaluate(models=entries, evaluators=(Sized(),), **options).run(bench)
    return json.loads((bench.folder / "scores.json").read_text()), bench


def test_sizes_are_columns_side_by_side(tmp_path: Path) -> None:
    result, bench = evaluated(tmp_path, "old", "new")
    assert result["columns"]["old@256"] == {"model": "old", "size": 256, "seed": None}
    assert [task["name"] for task in result["tasks"]] == ["code", "pairs"]
    lost = {(c["model"], c["task_or_mean"]): c for c in result["comparisons"]}["old@256", "task"]
    assert lost["difference"] == pytest.approx(-0.05)
    assert lost["interval"][0] == pytest.approx(-0.05)  # the same loss on every example
    lines = (bench.folder / "scores.md").read_text().splitlines()
    assert "| task | old@768 | old@256 | new@768 | new@256 |" in lines
    assert (bench.folder / "results" / "new" / "code-256.json").is_file()
    scores = read_scores(bench.folder)
    assert scores.list_columns("new") == ("new@768", "new@256")


def test_seeds_are_pooled_at_each_size(tmp_path: Path) -> None:
    result, _ = evaluated(tmp_path, "old", "new.seed=1", "new.seed=2")
    members = result["pooled"]["members"]
    assert [*members] == ["old@768", "old@256", "new@768", "new@256"]
    assert [*members["new@256"].values()] == ["new.seed=1@256", "new.seed=2@256"]


def test_a_requirement_names_a_task_without_its_size_and_is_judged_at_each(tmp_path: Path) -> None:
    refs = {"model": ModelRef("$new"), "better_than": (ModelRef("$old"),)}
    require = (Requirement(**refs, tasks="code", margin=4),)  # type: ignore[arg-type]
    result, bench = evaluated(tmp_path, "old", "new", require=require)
    scores = read_scores(bench.folder)
    assert [one.model for one in scores.list_verdicts("new@256")] == ["new@256"]
    judged = [(one["model"], one["other"], one["met"]) for one in result["requirements"]]
    assert judged == [("new@768", "old@768", True), ("new@256", "old@256", True)]
    with pytest.raises(RecipeError, match="code@256"):
        evaluated(tmp_path, "old", "new", require=(replace(require[0], tasks="code@256"),))


def test_tasks_without_the_sizes_of_others_are_refused() -> None:
    mixed = [TASKS[0].at_size(8), TASKS[0].at_size(4), TASKS[1], TASKS[1].at_size(8)]
    (fault,) = find_incomplete_column_problems(mixed)
    assert "pairs" in fault
    assert "code" not in fault
    assert list(find_incomplete_column_problems(TASKS)) == []

"""The select step: checkpoints and runs are ranked on development data, and the chosen ones are models."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from emberge import (
    Artifact,
    Evaluator,
    Model,
    ModelRef,
    Plugins,
    RecipeError,
    TaskInfo,
    TaskScore,
    Units,
    Workspace,
    hookimpl,
    load_plugins,
)
from emberge.results import find_leftovers, remove_leftovers
from emberge_evaluate.model_ranking import rank_models
from emberge_evaluate.select_step import Select
from sentence_transformers import SentenceTransformer

from tests.support.bench import Bench, model_at, write_pairs, write_retrieval
from tests.support.recipe_runs import find_faults, run_checked
from tests.support.result_folders import read_details
from tests.support.training_data import write_training_sets

asked: list[str] = []
SCORES = {
    "find-dev": (0.7, 0.72, 0.69),
    "seek-dev": (0.5, 0.46, 0.5),
    "alike-dev": (0.8, 0.7, 0.75),
}
TASKS = tuple(
    TaskInfo(name, kind, "accuracy", fingerprint=name, split="dev")
    for name, kind in (("find-dev", "retrieval"), ("seek-dev", "retrieval"), ("alike-dev", "sts"))
)


@dataclass(frozen=True, kw_only=True)
class Given(Evaluator):
    """Scores by the number at the end of a model's name."""

    tasks: tuple[TaskInfo, ...] = TASKS
    hidden: bool = False
    """Flag of tasks that do not show before the run."""

    def plan(self, workspace: Workspace) -> Sequence[TaskInfo]:
        return self.tasks

    def preview(self, context: Any) -> Sequence[TaskInfo] | None:
        return None if self.hidden else self.tasks

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
    ) -> Iterator[TaskScore]:
        number = int(re.findall(r"\d+", model.name)[-1]) - 1
        for task in tasks:
            asked.append(f"{model.name} {task.name}")
            score = SCORES.get(task.name, (0.1, 0.2, 0.3))[number]
            values = [score - 0.01 if i % 2 else score + 0.01 for i in range(40)]
            yield TaskScore(task, score, Units("query", "mean", values))


def given_plugin() -> ModuleType:
    module = ModuleType("given")

    @hookimpl
    def register_evaluators() -> Mapping[str, type[Evaluator]]:
        return {"given": Given}

    vars(module)["register_evaluators"] = register_evaluators
    return module


def registered() -> Plugins:
    """The plugins with scores that are given; nothing has been asked yet."""
    asked.clear()
    found = load_plugins(block=())
    found.register(given_plugin(), "given", "given", "1.0")
    return found


@pytest.fixture
def plugins() -> Plugins:
    return registered()


def bench(root: Path, berts: Sequence[Path]) -> Bench:
    made = Bench(root)
    for bert in berts:
        made.many[f"./{bert.name}"] = [model_at(bert)]
    return made


def select(berts: Sequence[Path], **options: Any) -> Select:
    models = tuple(ModelRef(f"./{bert.name}") for bert in berts)
    return Select(**{"models": models, "evaluators": (Given(),), "top": 1, **options})


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a result, but those that have times, or words that others add to."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("artifact.json", "README.md", "metrics.jsonl")
    }


def chosen(artifact: Artifact) -> list[str]:
    return [one["model"] for one in artifact.details["chosen"].values()]


# ── the choice ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("tasks", "order"), [("find-dev", (2, 1, 3)), ("retrieval", (1, 3, 2)), ("kinds", (1, 3, 2))]
)
def test_models_are_ranked_by_one_task_a_kind_or_a_mean(
    tasks: str, order: tuple[int, ...], berts: list[Path], tmp_path: Path
) -> None:
    artifact = select(berts, tasks=tasks, top=3).run(bench(tmp_path, berts))
    assert chosen(artifact) == [f"sibling{number}" for number in order]


def test_the_best_is_the_result_and_all_chosen_are_checkpoints(
    berts: list[Path], tmp_path: Path
) -> None:
    workspace = bench(tmp_path, berts)
    artifact = select(berts, tasks="find-dev", top=2).run(workspace)
    assert (artifact.kind, artifact.parents) == ("model", ("sibling2",))
    assert artifact.details["checkpoints"] == ["checkpoints/sibling2", "checkpoints/sibling1"]
    assert sorted(p.name for p in (workspace.folder / "checkpoints").iterdir()) == [
        "sibling1",
        "sibling2",
    ]
    for folder, bert in (
        (workspace.folder, berts[1]),
        (workspace.folder / "checkpoints/sibling1", berts[0]),
    ):
        found = contents(folder)
        assert all(found[name] == content for name, content in contents(bert).items())


def test_the_artifact_says_what_was_chosen_why_and_by_how_much(
    berts: list[Path], tmp_path: Path
) -> None:
    workspace = bench(tmp_path, berts)
    artifact = select(berts, tasks="find-dev", top=1).run(workspace)
    said = artifact.details["chosen_because"]
    assert all(word in said for word in ("sibling2", "sibling1", "3 models", "72.00", " 2.00 "))
    assert re.search(r"interval \+?2\.00 to \+?2\.00", said), "the same examples: no spread"
    (figure,) = artifact.figures
    assert figure.caption == said
    assert figure.heat_map is not None
    assert figure.heat_map.rows == ["sibling2", "sibling1", "sibling3"]
    assert figure.heat_map.columns == [task.name for task in TASKS]
    assert figure.heat_map.values[0] == pytest.approx([72, 46, 70])
    json.dumps(artifact.to_record(), allow_nan=False)


def test_of_equal_models_the_first_is_taken_and_both_are_named(
    berts: list[Path], tmp_path: Path
) -> None:
    for number, (first, second) in enumerate([(0, 2), (2, 0)]):
        pair = [berts[first], berts[second]]
        artifact = select(pair, tasks="seek-dev").run(bench(tmp_path / str(number), pair))
        assert chosen(artifact) == [pair[0].name]
        assert f"50.00, which {pair[1].name} has too" in artifact.details["chosen_because"]


def test_losses_are_ranked_from_the_least(berts: list[Path], tmp_path: Path) -> None:
    task = TaskInfo("held", "retrieval", "loss", fingerprint="held", split="dev")
    workspace = bench(tmp_path, berts)
    options = {"evaluators": (Given(tasks=(task,)),), "top": 2}
    artifact = select(berts, **options, metric="loss").run(workspace)
    assert chosen(artifact) == ["sibling1", "sibling2"]
    assert "0.1000, 10.00 points ahead of sibling2" in artifact.details["chosen_because"]
    with pytest.raises(RecipeError, match=r"metric: score.*held.*metric: loss"):
        select(berts, **options).run(workspace)
    with pytest.raises(RecipeError, match=r"metric: loss.*find-dev.*metric: score"):
        select(berts, metric="loss").run(workspace)


def test_equal_models_count_once(berts: list[Path], tmp_path: Path) -> None:
    workspace = bench(tmp_path, berts)
    workspace.many["./again"] = [model_at(berts[0], "again9")]
    step = select(berts[:2], top=2)
    twice = select([*berts[:2], Path("again")], top=2)
    assert chosen(twice.run(workspace)) == chosen(step.run(workspace)) == ["sibling1", "sibling2"]
    with pytest.raises(RecipeError, match=r"top: 3 of 2 models \(1 more equal"):
        select([*berts[:2], Path("again")], top=3).run(workspace)


def test_models_of_one_name_are_told_apart(berts: list[Path], tmp_path: Path) -> None:
    workspace = bench(tmp_path, berts)
    workspace.many["./other"] = [model_at(berts[2], "sibling1")]
    artifact = select([*berts[:1], Path("other")], top=2).run(workspace)
    assert chosen(artifact) == ["sibling1", "sibling1 (./other)"]
    assert len(set(artifact.details["checkpoints"])) == 2


SHARES = {"a": 0.70, "b": 0.72, "c": 0.69, "d": 0.71}


def test_what_is_no_number_is_last() -> None:
    for less_is_better in (False, True):
        for bad in (math.nan, -math.inf if not less_is_better else math.inf):
            *_, last = rank_models({**SHARES, "b": bad}, less_is_better=less_is_better)
            assert last.name == "b"
            assert math.isinf(last.behind)


# ── faults, before any work ─────────────────────────────────────────────────────────────────────


def chosen_of(berts: Sequence[Path], options: str) -> str:
    return (
        f"steps:\n  best:\n    select:\n      models: [{', '.join(map(str, berts))}]\n"
        + "".join(f"      {line}\n" for line in options.split("; "))
    )


@pytest.mark.parametrize(
    ("options", "line", "words"),
    [
        ("evaluators: given; top: 4", 6, ("top: 4 of 3 models", "lower top")),
        ("evaluators: given; top: 0", 6, ("top", "at least 1")),
        ("evaluators: given; tasks: find", 6, ("find", "did you mean 'find-dev'")),
        ("evaluators: given; metric: loss", 6, ("metric: loss", "find-dev", "metric: score")),
    ],
)
def test_a_fault_is_named_at_its_line_before_any_work(
    options: str,
    line: int,
    words: Sequence[str],
    berts: list[Path],
    plugins: Plugins,
    tmp_path: Path,
) -> None:
    found = find_faults(tmp_path, chosen_of(berts, options), plugins)
    assert len(found.splitlines()) == 1
    assert f"recipe.yaml:{line}: " in found
    assert all(word in found for word in words), found


def catalogue(folder: Path, *splits: str) -> Path:
    """A retrieval set and one of similarity, with these parts."""
    for number, split in enumerate(splits):
        write_retrieval(folder / "find", seed=7)
        named = "qrels.tsv" if split == "test" else f"qrels_{split}.tsv"
        (folder / "find" / "qrels.tsv").rename(folder / f"kept-{split}")
        write_pairs(folder / "alike" / f"{split}.jsonl.gz", rows=24, seed=number)
        shutil.move(folder / f"kept-{split}", folder / "find" / f".{named}")
    for hidden in (folder / "find").glob(".qrels*"):
        hidden.rename(hidden.with_name(hidden.name[1:]))
    path = folder / "datasets.yaml"
    path.write_text(
        "format: 1\neval:\n"
        "  - {name: find, dir: find, task: retrieval, language: en}\n"
        "  - {name: alike, dir: alike, task: sts, language: en, score_range: [0, 5]}\n"
    )
    return path


def test_test_data_and_sets_without_a_development_part_are_refused(
    berts: list[Path], plugins: Plugins, tmp_path: Path
) -> None:
    sets = catalogue(tmp_path / "sets", "test")
    text = f"evaluators: {{mteb: {{data: {{path: {sets}}}}}}}"
    found = find_faults(tmp_path, chosen_of(berts, text), plugins)
    assert "recipe.yaml:5: find, alike" in found
    assert "split: dev" in found
    text = f"evaluators: {{mteb: {{data: {{path: {sets}, split: dev}}}}}}"
    found = find_faults(tmp_path, chosen_of(berts, text), plugins)
    assert "has no qrels_dev.tsv" in found
    assert "has no dev file" in found


def test_what_does_not_show_before_the_run_is_refused_in_it(
    berts: list[Path], tmp_path: Path
) -> None:
    tested = (TaskInfo("find", "retrieval", "accuracy", split="test"),)
    workspace = bench(tmp_path, berts)
    for evaluator, options in ((Given(tasks=tested), {}), (Given(hidden=True), {"tasks": "find"})):
        asked.clear()
        with pytest.raises(RecipeError, match=r"split: dev|find-dev"):
            select(berts, evaluators=(evaluator,), **options).run(workspace)
        assert not asked
    with pytest.raises(RecipeError, match="top: 4"):
        select(berts, top=4).run(workspace)
    assert not asked


# ── a training's checkpoints ────────────────────────────────────────────────────────────────────

TRAIN = """
  joint:
    train:
      model: ./base
      data:
        - {path: ./find.jsonl, task: retrieval}
        - {path: ./alike.jsonl, task: sts}
      sampler: {batch_shuffle: {batch_size: 8}}
      loss: {default: {infonce: {temperature: 0.1}}, by_task: {sts: cosent}}
      learning_rate: 3.0e-3
      token_budget: 80
      max_steps: 24
      save_steps: 4
      keep_last: 6
"""
MTEB = "mteb: {data: {path: ./sets/datasets.yaml, split: dev}}"
PER_TASK = f"""
  ir:
    select:
      models: $joint.checkpoints
      evaluators: &dev {{{MTEB}}}
      tasks: retrieval
      top: 2
  sts:
    select:
      models: $joint.checkpoints
      evaluators: *dev
      tasks: alike-dev
      top: 2
"""
# Three checkpoints, whose scores are given.
SHORT = TRAIN.replace("max_steps: 24", "max_steps: 3").replace("save_steps: 4", "save_steps: 1")
GIVEN = PER_TASK.replace(f"{{{MTEB}}}", "given").replace("tasks: retrieval", "tasks: find-dev")
FUSED = """
  fused:
    merge:
      models:
        - {model: $ir.checkpoints, group: ir}
        - {model: $sts.checkpoints, group: sts}
      base: ./base
      strategy: [group, layer_softmax]
"""


def write_place(folder: Path, bert: Path) -> Path:
    """Write a model, two training sets, and sets with a development part into a folder."""
    (folder / "base").symlink_to(bert)
    write_training_sets(folder)
    catalogue(folder / "sets", "test", "dev")
    return folder


@pytest.fixture
def place(bert: Path, tmp_path: Path) -> Path:
    return write_place(tmp_path, bert)


def run(place: Path, plugins: Plugins, *parts: str) -> dict[str, Path]:
    return run_checked(place, "".join(["steps:", *parts]), plugins)


@dataclass(frozen=True)
class Finished:
    """A run of a short training, two choices and their merge; do not write into it."""

    place: Path
    made: Mapping[str, Path]
    asked: Sequence[str]


@pytest.fixture(scope="module")
def short(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    place = write_place(tmp_path_factory.mktemp("short"), bert)
    made = run(place, registered(), SHORT, GIVEN, FUSED)
    return Finished(place, made, list(asked))


def copied(short: Finished, folder: Path) -> Path:
    """Return a copy of the finished run, whose files are second names of its own."""
    shutil.copytree(short.place, folder, symlinks=True, copy_function=os.link)
    return folder


def test_checkpoints_are_chosen_by_task_and_fused(short: Finished) -> None:
    made = short.made
    sources: dict[str, list[str]] = {}
    for name in ("ir", "sts"):
        picked = read_details(made[name])["chosen"]
        sources[name] = [one["model"].removeprefix("joint/") for one in picked.values()]
        for folder, source in zip(picked, sources[name], strict=True):
            found = made[name] / folder / "model.safetensors"
            original = made["joint"] / "checkpoints" / source / "model.safetensors"
            assert found.stat().st_ino == original.stat().st_ino, "a second name, no copy"
        card = (made[name] / "README.md").read_text()
        assert ("## How it was chosen" in card, "## How it was trained" in card) == (True, False)
    assert sources == {"ir": ["step-2", "step-1"], "sts": ["step-1", "step-3"]}
    details = read_details(made["fused"])
    assert details.training_cost.times == 1, "one training, though two choices came from it"
    assert set(details.weights) == {
        f"{name}/joint-{source}" for name in ("ir", "sts") for source in sources[name]
    }


def test_two_choices_score_the_same_models_once(
    short: Finished, plugins: Plugins, tmp_path: Path
) -> None:
    assert short.asked == [f"joint/step-{n} {task.name}" for n in (1, 2, 3) for task in TASKS]
    # Nor does an evaluation of what was chosen, or a choice by something else.
    more = "\n  scores: {evaluate: {models: [$ir, $sts], evaluators: *dev}}"
    more += "\n  third: {select: {models: $joint.checkpoints, evaluators: *dev, tasks: seek-dev}}\n"
    run(copied(short, tmp_path / "copy"), plugins, SHORT, GIVEN, more)
    assert asked == []


def test_a_chosen_model_outlives_the_training_it_came_from(
    short: Finished, plugins: Plugins, tmp_path: Path
) -> None:
    out = copied(short, tmp_path / "copy") / "out"
    result, old = (out / "ir").resolve(strict=True), (out / "joint").resolve(strict=True)
    before = contents(result)
    run(out.parent, plugins, SHORT.replace("3.0e-3", "2.0e-3"))
    remove_leftovers(out, [one.path for one in find_leftovers(out)])
    assert not old.exists()
    assert contents(result) == before


def test_too_few_checkpoints_are_named_before_the_training(place: Path, plugins: Plugins) -> None:
    def found(*changes: tuple[str, str]) -> str:
        text = "steps:" + TRAIN
        for change in changes:
            text = text.replace(*change)
        return find_faults(place, text + PER_TASK.replace("top: 2", "top: 3"), plugins)

    assert "top: 3 of 2 models" in found(("keep_last: 6", "keep_last: 2"))
    assert "top: 3 of 2 models" in found(("save_steps: 4", "save_steps: 10"))
    assert "top: 3" not in found()


@pytest.mark.slow
def test_a_chosen_adapter_is_a_whole_model(place: Path, plugins: Plugins) -> None:
    lora = "      backbone: {text_encoder: {lora: {rank: 2}}}\n"
    made = run(place, plugins, TRAIN + lora, PER_TASK)
    for folder in (made["ir"], *(made["ir"] / "checkpoints").iterdir()):
        assert not list(folder.glob("adapter_*"))
        assert (folder / "model.safetensors").is_file()
        assert SentenceTransformer(str(folder), device="cpu").encode("a").shape == (32,)

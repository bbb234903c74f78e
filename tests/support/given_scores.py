"""Evaluators whose scores are given by a model's name, or its group, ratio and seed, and the step around."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from emberge import (
    Artifact,
    Evaluator,
    Model,
    ModelRef,
    Preflight,
    Problem,
    TaskInfo,
    TaskScore,
    Units,
    Workspace,
)
from emberge.contracts import TrainingDetails, UsedRows
from emberge_evaluate import Evaluate, EvaluatedModel, compute_statistic, read_variables

from tests.support.bench import Bench

TASKS = (
    TaskInfo("code", "retrieval", "ndcg_at_10", ("en",), "in", fingerprint="a"),
    TaskInfo("papers", "retrieval", "ndcg_at_10", ("en",), "out", "at most 50 queries", "b"),
    TaskInfo("pairs", "sts", "cosine_spearman", ("de",), "out", fingerprint="c"),
    TaskInfo("topics", "clustering", "v_measure", ("en",), "in", fingerprint="d"),
)


@dataclass(frozen=True, kw_only=True)
class Given(Evaluator):
    """Scores by the model's name: `quality` is added to queries' and pairs' difficulty.

    `facts` are further fields of a model's scores.
    """

    quality: dict[str, float] = field(default_factory=dict, hash=False)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False)
    asked: list[tuple[str, str]] = field(default_factory=list, hash=False)
    fails_at: str = ""
    wanted: tuple[TaskInfo, ...] = TASKS
    in_domain_of: tuple[str, ...] = ()

    def plan(self, workspace: Workspace) -> Sequence[TaskInfo]:
        return self.wanted

    def check(self, context: Preflight) -> Iterator[Problem]:
        yield context.warning("the evaluator was asked")

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
    ) -> Iterator[TaskScore]:
        for number, task in enumerate(tasks):
            if f"{model.name} {task.name}" == self.fails_at:
                raise KeyboardInterrupt
            self.asked.append((model.name, task.name))
            yield replace(self._score(model, task), **self.facts.get(model.name, {}))
            workspace.progress(number + 1, len(tasks), "tasks", task.name)

    def _score(self, model: Model, task: TaskInfo) -> TaskScore:
        rng = np.random.default_rng(len(task.name))
        own = np.random.default_rng(sum(map(ord, model.name + task.name)))
        quality = self.quality.get(model.name, 0.0)
        result = {"mteb": task.name}
        if task.kind == "clustering":
            return TaskScore(task, 0.4 + quality, None, result)
        if task.kind == "sts":
            gold = rng.random(80)
            noise = own.random(80) * (0.5 - quality)
            units = Units("pair", "spearman", (gold + noise).tolist(), gold.tolist())
            return TaskScore(task, compute_statistic(units), units, result)
        values = np.clip(rng.random(100) * 0.8 + quality + 0.02 * own.random(100), 0, 1)
        units = Units("query", "mean", values.tolist())
        return TaskScore(task, float(values.mean()), units, result)


def bench(root: Path, *names: str) -> Bench:
    made = Bench(root)
    for name in names:
        made.many[f"${name}"] = [Model(name, root, f"hash-{name}")]
    return made


def step(*names: str, **options: Any) -> Evaluate:
    entries = tuple(EvaluatedModel(model=ModelRef(f"${name}")) for name in names)
    return Evaluate(models=entries, **options)


def run(step_: Evaluate, workspace: Bench) -> tuple[Any, dict[str, Any]]:
    artifact = step_.run(workspace)
    return artifact, json.loads((workspace.folder / "scores.json").read_text())


QUALITY = {"base": 0.0, "merged": 0.05, "worse": -0.1}
ARM_QUALITY = {"bls": 0.0, "boom": 0.05, "bag": 0.01, "base": -0.2}
ARM_TASKS = tuple(
    TaskInfo(task.name, task.kind, task.metric, domain=task.domain, fingerprint=letter)
    for task, letter in zip(TASKS[:3], "abc", strict=True)
)


@dataclass(frozen=True, kw_only=True)
class GivenByArm(Evaluator):
    """Scores by a model's group, its ratio and its seed."""

    noise: Mapping[str, float] = field(default_factory=lambda: {"1": 0.0, "2": 0.01, "3": -0.004})

    def plan(self, workspace: Any) -> Sequence[TaskInfo]:
        return ARM_TASKS

    def check(self, context: Any) -> Iterator[Problem]:
        yield from ()

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Any
    ) -> Iterator[TaskScore]:
        variables = read_variables(model.name)
        gain = ARM_QUALITY[model.name.partition(".")[0]] + self.noise[variables.get("seed", "1")]
        gain += 0.1 * float(variables.get("ratio", 0))
        for task in tasks:
            values = np.random.default_rng(len(task.name)).random(80) * 0.4 + 0.4 + gain
            yield TaskScore(task, float(values.mean()), Units("query", "mean", values.tolist()))


def trained(rows: int, of: int) -> TrainingDetails:
    """Return the details of a training on one data set."""
    datasets = {"faq": UsedRows(task="retrieval", rows=rows, of=of)}
    return TrainingDetails(datasets=datasets, seed=0, steps=1, last_loss=0.5, learning_rate=1e-5)


def bench_of_arms(root: Path, *steps: str, **facts: Mapping[str, Any]) -> Bench:
    made = Bench(root)
    for step in steps:
        artifact = Artifact(kind="model", **facts.get(step.partition(".")[0], {}))
        made.many[f"${step}"] = [Model(step, root, f"hash-{step}", artifact)]
    return made


SEEDS = [f"{arm}.seed={seed}" for arm in ("bls", "boom") for seed in (1, 2, 3)]

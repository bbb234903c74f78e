"""The `fine_tuned` evaluator: scores of models after they were trained on tasks, with a head on top."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from emberge import (
    DataError,
    EmbergeError,
    Evaluator,
    MediaFacts,
    Model,
    Preflight,
    Problem,
    TaskInfo,
    TaskScore,
    Workspace,
)

from emberge_evaluate.fine_tuning.task_data import (
    TaskData,
    check_first_rows,
    entry_problems,
    load_task,
)
from emberge_evaluate.fine_tuning.task_entry import TaskEntry
from emberge_evaluate.fine_tuning.tuning_options import TuningOptions

_OF_TEXTS = ("classification", "regression", "choice")  # heads that pool
_OLD = 0.4  # share of the mean so far in the next point, as BidirLM's curves have it


@dataclass(frozen=True, kw_only=True)
class FineTuned(TuningOptions, Evaluator):
    """Scores of models after they were fine-tuned on tasks, as BidirLM is judged by (arXiv:2604.02045).

    `tasks` are named tasks of the hub (GLUE, XTREME without its questions, XTREME-R, XNLI and others), `data`
    are tasks with the user's own rows. Each task gets a fresh head. The head of a whole text is a dense
    layer, GELU, dropout and a linear layer on the pooled state. `pooling` is `mean`, `last`, `bos` (the first
    token) or `late` (the head is applied to each token, and the logits are averaged); `auto` means the last
    token for a causal model and the mean for others. Each word is labelled at its first sub-token. With
    `align: previous` it is labelled at the token before that, which suits models that were trained to predict
    the next token.

    A training has `steps` steps, or those of `epochs`, with 10 % warm-up and a linear decay. The state,
    learning rate and batch size with the best score on development data are tested. A training ends early
    after `patience` epochs without a better score. Each of `seeds` has its own column, `model#seed`, and the
    intervals of comparisons include the spread of the seeds. Finished trainings are stored in OUT, so a
    killed evaluation resumes where it stopped.

    A task that is trained on one corpus may be tested on several. With `columns: test` each of them has its
    own column, such as `tone/reviews`, and a test set of another source names its own columns and labels.

    To test retrieval, which needs no head, use a step `train` on triplets, then the evaluator `mteb`.

    Example:
        scores:
          evaluate:
            models: [./causal, ./adapted]
            evaluators:
              fine_tuned:
                tasks: [xnli]
                data:
                  - name: tone
                    train: ./tone/train.jsonl
                    test:
                      - {path: ./tone/test.jsonl, name: tweets}
                      - {path: ./reviews.jsonl, name: reviews, text: review, labels: {good: positive}}
                    text: sentence
                    columns: test
                learning_rate: [1e-5, 5e-5, 2e-4]
                steps: 500
                seeds: [1, 2, 3]
    """

    tasks: tuple[str, ...] = ()
    """Named tasks of the hub, or whole collections: glue, xtreme, xtreme_r, bidirlm."""
    data: tuple[TaskEntry, ...] = ()
    """Tasks with the user's own rows."""

    # ── before the run ──────────────────────────────────────────────────────────────────────────

    def check(self, context: Preflight) -> Iterator[Problem]:
        if not (self.tasks or self.data):
            fault = "there is nothing to fine-tune on: give tasks or data"
            yield context.problem(fault, "tasks")
        for option, message in self.problems():
            yield context.problem(message, option)
        try:
            entries = self.entries()
        except DataError as error:
            yield context.problem(str(error), "tasks")
            return
        names = [column for entry in entries for column in entry.test_by_column]
        for name, count in Counter(names).items():
            if count > 1:
                yield context.problem(f"{count} tasks are called '{name}'; leave one out", "data")
        entries_by_name = {entry.name: entry for entry in entries}
        for entry in entries:
            faults = list(entry_problems(entry, entries_by_name))
            yield from (context.problem(fault, "data") for fault in faults)
            if not faults:
                yield from self._check_rows(entry, context)

    def _check_rows(self, entry: TaskEntry, context: Preflight) -> Iterator[Problem]:
        """Yield the problems of files, and of the first rows of hub datasets if the network may be used."""
        where = context.where("data")
        if entry.from_hub and not context.deep:
            yield Problem(
                f"task '{entry.name}' of the hub was not looked at", where, "unseen", "task"
            )
            return
        try:
            media = self._look_at_media(entry, context)
            if not (entry.from_hub or media):
                load_task(entry, readers=context.readers, resolve=context.data)
        except EmbergeError as error:
            for line in str(error).splitlines():
                yield context.problem(line, "data")

    def _look_at_media(self, entry: TaskEntry, context: Preflight) -> Sequence[MediaFacts]:
        """Return the facts of media in a task's first rows, which are read once for all models.

        Raises:
            DataError: for rows that do not fit.
        """
        if entry.name not in self._media_by_task:
            self._media_by_task[entry.name] = check_first_rows(
                entry, readers=context.readers, resolve=context.data
            )
        return self._media_by_task[entry.name]

    @functools.cached_property
    def _media_by_task(self) -> dict[str, Sequence[MediaFacts]]:
        return {}

    def check_model(self, checkpoint: Path, context: Preflight) -> Iterable[str]:
        facts = self.backbone.describe(checkpoint)
        if facts.problems:
            return facts.problems
        if faults := self._check_media(checkpoint, context):
            return faults
        pools = any(entry.head in _OF_TEXTS for entry in self.entries())
        if not (pools and facts.causal):
            return []
        lost = {
            "mean": "most of the tokens that it takes the mean of know little of the text",
            "late": "most of the tokens that logits are the mean of know little of the text",
            "bos": "the first token knows nothing of the text",
        }
        if self.pooling not in lost:
            return []
        return [
            f"its attention is causal, so with pooling: {self.pooling} {lost[self.pooling]}; set pooling: "
            "auto, which takes the last token of such models, or the backbone's attention: bidirectional"
        ]

    def _check_media(self, checkpoint: Path, context: Preflight) -> list[str]:
        """Return reasons why the model cannot read the images and clips of the tasks' first rows."""
        faults = []
        for entry in self.data:
            if entry.from_hub and not context.deep:
                continue
            try:
                media = self._look_at_media(entry, context)
            except EmbergeError:  # a problem of `check`
                continue
            for facts in media:
                faults += self.backbone.check_media(checkpoint, facts)
        return faults

    def preview(self, context: Preflight) -> Sequence[TaskInfo] | None:
        try:
            return [info for entry in self.entries() for info in self._list_tasks(entry)]
        except DataError:
            return None

    def entries(self) -> list[TaskEntry]:
        """Return all tasks, each after the task that it starts from.

        Raises:
            DataError: for a name that is no task of the hub.
        """
        from emberge_evaluate.fine_tuning.hub_tasks import hub_tasks

        return [*hub_tasks(self.tasks), *self.data]

    # ── the run ─────────────────────────────────────────────────────────────────────────────────

    def plan(self, workspace: Workspace) -> Sequence[TaskInfo]:
        data = self._load_tasks(workspace)
        return [
            info
            for name, task_data in data.items()
            for info in self._list_tasks(task_data.entry, self._hash_task(name, data, workspace))
        ]

    def _list_tasks(self, entry: TaskEntry, fingerprint: str = "") -> list[TaskInfo]:
        """Return a task for each of the entry's columns, or one for each column and seed."""
        columns = []
        for column, test in entry.test_by_column.items():
            content = hashlib.sha256(f"{fingerprint}\0test {test}".encode()).hexdigest()
            key = content if fingerprint and test is not None else fingerprint
            columns.append(
                TaskInfo(column, entry.head, entry.scored_by, fingerprint=key, split="test")
            )
        if len(self.seeds) == 1:
            return columns
        return [column.at_seed(seed) for column in columns for seed in self.seeds]

    def _hash_task(self, name: str, data: Mapping[str, TaskData], workspace: Workspace) -> str:
        """Return a hash of everything but the model that decides a score."""
        start = data[name].entry.start
        options = replace(self, tasks=(), data=(), seeds=self.seeds if len(self.seeds) == 1 else ())
        parts = (
            data[name].key,
            data[start].key if start is not None else "",
            options,
            version("emberge"),
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def _load_tasks(self, workspace: Workspace) -> dict[str, TaskData]:
        """Return the data of all tasks by name.

        Raises:
            DataError: for rows that do not fit.
        """
        data_by_name: dict[str, TaskData] = {}
        for entry in self.entries():
            task_data = load_task(
                entry,
                readers=workspace.readers,
                resolve=workspace.data,
                store=workspace.work / "media",
            )
            assert task_data is not None  # of steps that ran
            data_by_name[entry.name] = task_data
        return data_by_name

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
    ) -> Iterator[TaskScore]:
        from emberge_evaluate.fine_tuning.grid import Grid

        grid = Grid(TuningOptions.of(self), model, self._load_tasks(workspace), workspace)
        column_of = {
            column: (entry.name, test)
            for entry in self.entries()
            for column, test in entry.test_by_column.items()
        }
        scored = [
            (task, self._derive_seed(task), *column_of[task.name_without_seed]) for task in tasks
        ]
        grid.expect([(name, seed) for _, seed, name, _ in scored])
        for task, seed, name, test in scored:
            yield grid.score(task, name, seed, test)

    def _derive_seed(self, task: TaskInfo) -> int:
        return self.seeds[0] if task.seed is None else task.seed

    def figures(self, scores: Mapping[str, Mapping[str, TaskScore]]) -> list[dict[str, Any]]:
        columns = {entry.name: [*entry.test_by_column] for entry in self.entries()}
        return learning_curves(scores, columns, on_tests=self.test_curves)


def smoothed(values: Sequence[float], old: float = _OLD) -> list[float]:
    """Return the exponential moving average of values; the previous mean has the weight `old`."""
    means: list[float] = []
    for value in values:
        means.append(old * means[-1] + (1 - old) * value if means else value)
    return means


def learning_curves(
    scores: Mapping[str, Mapping[str, TaskScore]],
    columns_by_task: Mapping[str, Sequence[str]],
    *,
    on_tests: bool = False,
) -> list[dict[str, Any]]:
    """Return a figure for each task: models' scores on development data over steps, means over seeds.

    With `on_tests` there is a figure for each of a task's columns, of scores on its test data. A point is the
    mean over the seeds that reached its step. Each curve is that of the best setting.
    """
    wanted = [
        (column if on_tests else task, column)
        for task, columns in columns_by_task.items()
        for column in (columns if on_tests else columns[:1])
    ]
    figures = []
    for name, column in wanted:
        mine = {
            model: [score for score in row.values() if score.task.name_without_seed == column]
            for model, row in scores.items()
        }
        several = {model: of_model for model, of_model in mine.items() if of_model}
        figure = _draw_figure(name, several, on_tests=on_tests)
        figures += [figure] if figure is not None else []
    return figures


def _draw_figure(
    name: str, scores: Mapping[str, Sequence[TaskScore]], *, on_tests: bool
) -> dict[str, Any] | None:
    key = "test_curve" if on_tests else "curve"
    curves = {
        model: [_smooth_curve(one.result[key]) for one in several]
        for model, several in scores.items()
    }
    steps = sorted({step for several in curves.values() for curve in several for step in curve})
    if len(steps) < 2:
        return None
    series = {
        model: [_mean_at_step(several, step) for step in steps] for model, several in curves.items()
    }
    metric = next(iter(scores.values()))[0].task.metric
    head = ["steps", *series]
    rows = [
        [f"{step:,}", *(_format_score(line[at]) for line in series.values())]
        for at, step in enumerate(steps)
    ]
    return {
        "title": f"Fine-tuning on {name}",
        "caption": (
            f"{metric} on {'test' if on_tests else 'development'} data at the setting chosen, the mean "
            f"over seeds, each smoothed by an exponential moving average ({_OLD:g})."
        ),
        "lines": {
            "x": "step",
            "y": metric,
            "labels": [f"{step}" for step in steps],
            "series": series,
        },
        "table": {"title": f"{metric} × 100 by step", "head": head, "rows": rows},
    }


def _format_score(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _smooth_curve(curve: Sequence[Sequence[float]]) -> dict[int, float]:
    """Return the smoothed score by step, of points that begin with the step and end with the score."""
    values = smoothed([float(score) for *_, score in curve])
    return {int(step): value for (step, *_), value in zip(curve, values, strict=True)}


def _mean_at_step(curves: Sequence[Mapping[int, float]], step: int) -> float | None:
    values = [curve[step] for curve in curves if step in curve]
    return sum(values) / len(values) if values else None

"""The `fine_tuned` evaluator: scores of models after they were trained on tasks, with a head on top."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from emberge import (
    EmbergeError,
    Evaluator,
    Model,
    Preflight,
    Problem,
    TaskInfo,
    TaskScore,
    Workspace,
)
from emberge.model_folder import TextLimit

from emberge_fine_tuned.hub_tasks import list_hub_tasks
from emberge_fine_tuned.options import TaskEntry, TuningOptions
from emberge_fine_tuned.task_data import TaskData, load_task


@dataclass(frozen=True, kw_only=True)
class FineTuned(TuningOptions, Evaluator):
    """Scores of models after fine-tuning on tasks, as BidirLM's paper evaluates models (arXiv:2604.02045).

    `tasks` are named tasks of the hub (GLUE, XTREME without its questions, XTREME-R, XNLI and others), `data`
    are tasks with the user's own rows. Each task gets a fresh head. The head of a whole text is a dense
    layer, GELU, dropout and a linear layer on the last token's state of a causal model, and on the mean over
    tokens of others. Each word is labelled at its first sub-token.

    A training has `steps` steps, or those of `epochs`, with 10 % warm-up and a linear decay. The state,
    learning rate and batch size with the best score on development data are tested. A training ends early
    after `patience` epochs without a better score. Each of `seeds` has its own column, `model#seed`, and the
    intervals of comparisons include the spread of the seeds. Finished trainings are stored in OUT, so a
    killed evaluation resumes where it stopped.

    A task that is trained on one corpus may be tested on several. With `columns: test` each of them has its
    own column, such as `tone/reviews`, and a test set of another source names its own columns and labels.

    Example:
        scores:
          evaluate:
            models: [./causal, ./adapted]
            evaluators:
              fine_tuned:
                tasks: [xnli]
                data: {name: tone, train: ./train.jsonl, test: ./test.jsonl, text: sentence}
                learning_rate: [1e-5, 5e-5, 2e-4]
                steps: 500
                seeds: [1, 2, 3]
    """

    tasks: tuple[str, ...] = ()
    """Named tasks of the hub, or whole collections: glue, xtreme, xtreme_r, bidirlm."""
    data: tuple[TaskEntry, ...] = ()
    """Tasks with the user's own rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.tasks or self.data):
            raise ValueError("there is nothing to fine-tune on: give tasks or data")
        entries = self.list_entries()
        columns = Counter(column for entry in entries for column in entry.test_by_score_column)
        for name, count in columns.items():
            if count > 1:
                raise ValueError(f"data: {count} tasks are called '{name}'; leave one out")
        origins = {None, *(entry.name for entry in entries if entry.start is None)}
        for entry in entries:
            if entry.start not in origins - {entry.name}:
                raise ValueError(
                    f"data: task '{entry.name}' starts from '{entry.start}', which is no other task here "
                    "that starts from the model itself; name one that is"
                )

    def check(self, context: Preflight) -> Iterator[Problem]:
        for entry in self.list_entries():
            if entry.from_hub:
                text = f"task '{entry.name}' of the hub was not looked at"
                yield Problem(text, context.where("data"), "unseen")
                continue
            try:
                load_task(entry, context.readers, context.data)
            except EmbergeError as error:
                for line in str(error).splitlines():
                    yield context.problem(line, "data")

    def check_model(self, checkpoint: Path | None, context: Preflight) -> Iterable[str]:
        if checkpoint is None:
            return ()
        problems = self.backbone.describe(checkpoint).problems
        return problems or TextLimit.read(checkpoint).describe_problems(self.max_length)

    def preview(self, context: Preflight) -> Sequence[TaskInfo]:
        return [info for entry in self.list_entries() for info in self._list_tasks(entry)]

    def list_entries(self) -> list[TaskEntry]:
        """Return all tasks, each after the task that it starts from."""
        return [*list_hub_tasks(self.tasks), *self.data]

    def plan(self, workspace: Workspace) -> Sequence[TaskInfo]:
        data = self._load_tasks(workspace)
        return [
            info
            for name, task_data in data.items()
            for info in self._list_tasks(task_data.entry, self._hash_task(name, data))
        ]

    def _list_tasks(self, entry: TaskEntry, fingerprint: str = "") -> list[TaskInfo]:
        """Return a task for each of the entry's columns, or one for each column and seed."""
        columns = []
        for column, test in entry.test_by_score_column.items():
            key = fingerprint
            if fingerprint and test is not None:
                key = hashlib.sha256(f"{fingerprint}\0{test}".encode()).hexdigest()
            info = TaskInfo(column, entry.head, entry.scored_by, fingerprint=key, split="test")
            columns.append(info)
        if len(self.seeds) == 1:
            return columns
        return [column.at_seed(seed) for column in columns for seed in self.seeds]

    def _hash_task(self, name: str, data: Mapping[str, TaskData]) -> str:
        """Return a hash of everything but the model that decides a score."""
        start = data[name].entry.start
        left_out = ("tasks", "data") if len(self.seeds) == 1 else ("tasks", "data", "seeds")
        options = {option: value for option, value in vars(self).items() if option not in left_out}
        keys = [data[task].key for task in (name, start) if task is not None]
        return hashlib.sha256(repr((keys, options, version("emberge"))).encode()).hexdigest()

    def _load_tasks(self, workspace: Workspace) -> dict[str, TaskData]:
        """Return the data of all tasks by name, read again at each call: between them it is not in memory."""
        reading = workspace.readers, workspace.data, workspace.work / "media"
        loaded = [load_task(entry, *reading) for entry in self.list_entries()]
        return {data.entry.name: data for data in loaded if data is not None}  # no step is missing

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
    ) -> Iterator[TaskScore]:
        from emberge_fine_tuned.grid import Grid

        grid = Grid(self, model, self._load_tasks(workspace), workspace)
        task_and_test_by_score_column = {
            column: (entry.name, test)
            for entry in self.list_entries()
            for column, test in entry.test_by_score_column.items()
        }
        for number, task in enumerate(tasks, 1):
            name, test = task_and_test_by_score_column[task.name]
            seed = self.seeds[0] if task.seed is None else task.seed
            with workspace.part("task", number, len(tasks), task.label):
                score = grid.score(task, name, seed, test)
            yield score

"""The `printed_table` step: a paper's table in its layout, with the run's and the printed scores."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

from emberge import (
    AnyNumber,
    Artifact,
    ArtifactKind,
    ModelRef,
    NumberRange,
    Preflight,
    Problem,
    RecipeError,
    Step,
    StepRef,
    TaskInfo,
    Workspace,
)
from emberge.evaluating import GROUP_OF, Scores, parts_of_group, read_scores
from emberge.files import write_text
from emberge.wording import Markdown, join_some, prose, table_lines

if TYPE_CHECKING:
    from emberge.contracts import Domain

TABLE = "printed_table.md"
_NONE = "–"


@dataclass(frozen=True, kw_only=True)
class PrintedRow:
    """Row of a printed table: the model of this run, and the numbers that the paper prints.

    `model` may refer to several models, such as those of a `foreach` over seeds; then their mean is shown. A
    row without `model` is a system that only the paper has. `printed` has a number for each column, null
    where the paper has none. A row without `printed` is a model that only this run has. With `size` the row
    has the scores of embeddings cut to that size.
    """

    model: ModelRef | None = None
    printed: tuple[AnyNumber | None, ...] = ()
    size: Annotated[int, NumberRange(least=1)] | None = None


@dataclass(frozen=True, kw_only=True)
class PrintedColumn:
    """Column of a printed table: the tasks that are averaged, and the evaluation that scored them."""

    tasks: str
    """Task, kind or group of tasks."""
    scores: StepRef
    """Evaluation that scored the tasks; one of the table's `scores`."""


@dataclass(frozen=True, kw_only=True)
class PrintedTable(Step):
    """Table of a paper, in the paper's layout, with the scores of this run and the printed scores.

    Each column is a task, or a group of tasks whose scores are averaged: `all`, `kinds` (the mean of the
    means of the kinds of task), `ind`, `ood`, `elsewhere`, or a kind such as `retrieval`. If several
    evaluations scored a model on such tasks, the first of them counts; a column for another evaluation names
    it, as in `Code: {tasks: all, scores: $code}`. Scores are in points, as papers print them. If a row has
    several seeds, their mean and standard deviation are shown.

    The result has `printed_table.md`, and the same numbers as `printed_table.json`.

    Example:
        scores:
          evaluate: {models: [./full, ./merged], evaluators: {mteb: {tasks: [STS12, NFCorpus]}}}
        table_1:
          printed_table:
            scores: $scores
            title: The paper that has it, table 1
            columns: {Mean (Task): all, STS12: STS12}
            rows:
              Full data: {model: ./full, printed: [69.1, 71.0]}
              Merged: {model: ./merged, printed: [69.6, 71.2]}
    """

    produces: ClassVar[ArtifactKind] = "report"

    scores: tuple[StepRef, ...]
    """Evaluations that scored the rows' models."""
    title: str
    """Paper, number of the table and its place in the paper, by which a reader finds it."""
    columns: dict[str, str | PrintedColumn]
    """Heading of each column, with the task, kind or group of tasks whose mean the column has; the
    evaluation can be named too."""
    rows: dict[str, PrintedRow]
    """Heading of each row, with its model and its printed numbers."""
    digits: Annotated[int, NumberRange(least=0, most=6)] = 2
    """Digits after the point."""
    note: str = ""
    """Differences between the paper's runs and this one."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        if not self.scores:
            yield context.problem(
                "there is no evaluation to read; name it under 'scores'", "scores"
            )
        for name in ("columns", "rows"):
            if not getattr(self, name):
                yield context.problem(f"a table without {name}; give one at least", name)
        yield from self._check_columns(context)
        yield from self._check_rows(context)

    def _check_columns(self, context: Preflight) -> Iterator[Problem]:
        for heading, column in self.columns.items():
            if isinstance(column, PrintedColumn) and column.scores not in self.scores:
                yield context.problem(
                    f"column '{heading}' is of {column.scores}, which is not under 'scores'",
                    "columns",
                )

    def _check_rows(self, context: Preflight) -> Iterator[Problem]:
        for heading, row in self.rows.items():
            if row.printed and len(row.printed) != len(self.columns):
                yield context.problem(
                    f"row '{heading}' has {len(row.printed)} printed numbers, and there are "
                    f"{len(self.columns)} columns; write null where the paper has none",
                    "rows",
                )
            if row.model is None and not row.printed:
                yield context.problem(
                    f"row '{heading}' has neither a model nor printed numbers", "rows"
                )
            if row.model is not None:
                context.model(row.model, weights=False)

    def run(self, workspace: Workspace) -> Artifact:
        """Read the scores and write the table.

        Raises:
            RecipeError: if none of the evaluations scored a model, or a column has no task.
        """
        evaluations = {
            reference: _Evaluation.read(workspace, reference) for reference in self.scores
        }
        cells = {
            heading: self._measure_row(heading, row, evaluations, workspace)
            for heading, row in self.rows.items()
        }
        content = {
            "title": self.title,
            "note": self.note,
            "columns": {
                heading: column.tasks if isinstance(column, PrintedColumn) else column
                for heading, column in self.columns.items()
            },
            "rows": {heading: [cell.plain() for cell in row] for heading, row in cells.items()},
        }
        write_text(workspace.folder / "printed_table.json", json.dumps(content, indent=1) + "\n")
        write_text(workspace.folder / TABLE, self._draw(cells))
        return Artifact(
            kind="report",
            parents=tuple(row.model.text for row in self.rows.values() if row.model is not None),
            details={"table": TABLE, "title": self.title},
        )

    def _measure_row(
        self,
        heading: str,
        row: PrintedRow,
        evaluations: Mapping[StepRef, _Evaluation],
        workspace: Workspace,
    ) -> list[_Cell]:
        """Return the row's cells, one for each column."""
        printed = row.printed or (None,) * len(self.columns)
        if row.model is None:
            return [_Cell((), number) for number in printed]
        fingerprints = [model.fingerprint for model in workspace.models(row.model)]
        cells = []
        for (title, column), number in zip(self.columns.items(), printed, strict=True):
            if isinstance(column, PrintedColumn):
                tasks, candidates = column.tasks, [evaluations[column.scores]]
            else:
                tasks, candidates = column, list(evaluations.values())
            values = [
                value
                for fingerprint in fingerprints
                for value in _find_values(candidates, fingerprint, row.size, tasks)
            ]
            if not values:
                raise RecipeError(
                    f"printed_table: no evaluation scored {row.model} of row '{heading}' on '{tasks}' "
                    f"(column '{title}'); they scored {_describe(candidates)}"
                )
            cells.append(_Cell(tuple(values), number))
        return cells

    def _draw(self, cells: Mapping[str, Sequence[_Cell]]) -> str:
        """Return the table as Markdown."""
        rows = [
            [heading, *(Markdown(cell.text(self.digits)) for cell in row)]
            for heading, row in cells.items()
        ]
        lines = [f"# {prose(self.title)}", "", "This run, and in brackets as printed:", ""]
        lines += table_lines(["", *self.columns], rows, "l" + "r" * len(self.columns))
        lines += ["", prose(self.note)] if self.note else []
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _Cell:
    """Cell of the table: the scores of a row's models in points, and the printed number."""

    values: tuple[float, ...]
    printed: float | None

    @property
    def mean(self) -> float | None:
        """Mean over the models; None without models."""
        return statistics.fmean(self.values) if self.values else None

    def text(self, digits: int) -> str:
        """Return `69.10 ± 0.21 [69.32]`: this run's mean and standard deviation, and the printed number."""
        spread = f" ± {statistics.stdev(self.values):.{digits}f}" if len(self.values) > 1 else ""
        mean_text = _NONE if self.mean is None else f"{self.mean:.{digits}f}{spread}"
        return mean_text if self.printed is None else f"{mean_text} [{self.printed:.{digits}f}]"

    def plain(self) -> dict[str, Any]:
        """Return the cell for JSON."""
        return {"values": list(self.values), "mean": self.mean, "printed": self.printed}


@dataclass(frozen=True)
class _Evaluation:
    """Scores of one evaluation."""

    scores: Scores

    @classmethod
    def read(cls, workspace: Workspace, reference: StepRef) -> _Evaluation:
        folder, _ = workspace.artifact(reference)
        return cls(read_scores(folder))

    def values_of(self, fingerprint: str, size: int | None, tasks: str) -> Iterator[float]:
        """Yield the mean over a group of tasks, in points, of each model with these weights."""
        known_tasks = [
            TaskInfo(task.name, task.kind, task.metric, domain=cast("Domain", task.domain))
            for task in self.scores.tasks
        ]
        parts = parts_of_group(known_tasks, GROUP_OF.get(tasks, tasks))
        sizes = self.scores.sizes
        same = [
            name for name, content in self.scores.fingerprints.items() if content == fingerprint
        ]
        full_size = max((sizes[name] for name in same if name in sizes), default=math.inf)
        for name in same:
            if sizes.get(name, full_size) != (size or full_size):
                continue
            values = self.scores.values.get(name, {})
            means = [[values[task.name] for task in part if task.name in values] for part in parts]
            if means and all(means):
                yield self.scores.scale * statistics.fmean(map(statistics.fmean, means))


def _find_values(
    evaluations: Sequence[_Evaluation], fingerprint: str, size: int | None, tasks: str
) -> list[float]:
    """Return a model's scores in the first evaluation that has some, so that no score counts twice."""
    values_by_evaluation = (list(one.values_of(fingerprint, size, tasks)) for one in evaluations)
    return next((values for values in values_by_evaluation if values), [])


def _describe(evaluations: Sequence[_Evaluation]) -> str:
    """Return a sentence that names the models and tasks of the evaluations."""
    models = dict.fromkeys(name for evaluation in evaluations for name in evaluation.scores.models)
    tasks = dict.fromkeys(
        task.name for evaluation in evaluations for task in evaluation.scores.tasks
    )
    return f"{join_some(models, 6)} on {join_some(tasks, 8)}"

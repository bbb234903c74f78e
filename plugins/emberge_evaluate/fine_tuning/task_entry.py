"""Tasks to fine-tune on: their rows, columns, head and metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from emberge import Count, DataEntry, DataRef, NumberRange

Head = Literal["classification", "regression", "tokens", "span", "choice"]
Metric = Literal[
    "accuracy", "macro_f1", "f1", "matthews", "spearman", "entity_f1", "span_f1", "exact_match"
]
# Metrics of each head, its default first.
METRICS: dict[Head, tuple[Metric, ...]] = {
    "classification": ("macro_f1", "accuracy", "f1", "matthews"),
    "regression": ("spearman",),
    "tokens": ("macro_f1", "accuracy", "entity_f1"),
    "span": ("span_f1", "exact_match"),
    "choice": ("accuracy",),
}


@dataclass(frozen=True, kw_only=True)
class TaskRowSource:
    """Rows of a file, or of a split of a hub dataset; `limit` keeps an even sample of them.

    If the file is a catalogue, such as the result of a step that makes data, `only` names one of its sets.
    """

    path: DataRef | None = None
    only: str | None = None
    hub: str | None = None
    subset: str | None = None
    split: str = "train"
    revision: str | None = None
    name: str | None = None
    limit: Count | None = None

    @property
    def entry(self) -> DataEntry:
        """The same as an entry of data."""
        return DataEntry(
            path=self.path,
            only=() if self.only is None else (self.only,),
            hub=self.hub,
            subset=self.subset,
            split=self.split,
            revision=self.revision,
            name=self.name,
            limit=self.limit,
        )


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """Task with rows of its own: files of any known format, or hub datasets.

    `head` is the kind of prediction to learn: `classification`, `regression`, `tokens` (a label for each word
    of a list), `span` (the answer to the question `text` in the passage `second`, with `label` as in SQuAD:
    `{text, answer_start}`) or `choice` (one of the columns in `choices`). Settings are chosen on `dev`;
    without it a share `dev_share` of the training rows is held out for this. Every set in `test` has its own
    score, and the task's score is their mean. With one test set for each language this measures cross-lingual
    transfer.
    """

    name: str
    train: TaskRowSource
    test: tuple[TaskRowSource, ...]
    dev: tuple[TaskRowSource, ...] = ()
    dev_share: Annotated[float, NumberRange(above=0, below=1)] = 0.1
    head: Head = "classification"
    text: str = "text"
    """Column of the text, or of the list of words."""
    second: str | None = None
    """Column of the second text of a pair."""
    label: tuple[str, ...] = ("label",)
    """Column of the label, number, list of labels or answers; several columns of numbers are averaged."""
    choices: tuple[str, ...] = ()
    """Columns of the texts to choose from, or one column with a list of them."""
    labels: tuple[str, ...] = ()
    """Labels in the order of the head's outputs; by default the sorted labels of the training rows."""
    metric: Metric | None = None
    """Metric to report; by default the first one of the head."""
    start: str | None = None
    """Another task of this evaluator, whose fine-tuned model this one starts from."""
    steps: Count | None = None
    """Optimizer steps, where they differ from the evaluator's."""

    @property
    def scored_by(self) -> Metric:
        """Metric of the score."""
        return self.metric or METRICS[self.head][0]

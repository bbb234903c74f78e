"""Tasks to fine-tune on: their rows, columns, head and metric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from emberge import Count, DataEntry, DataRef, NumberRange, Positive

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
    Rows of another corpus than the task's may have other columns and other labels.
    """

    path: DataRef | None = None
    only: str | None = None
    hub: str | None = None
    subset: str | None = None
    split: str = "train"
    revision: str | None = None
    name: str | None = None
    limit: Count | None = None
    text: str | None = None
    """Column of the text, where it is not the task's."""
    second: str | None = None
    """Column of the second text, where it is not the task's; an empty name for rows without one."""
    label: tuple[str, ...] = ()
    """Columns of the label, where they are not the task's."""
    labels: dict[str, str] = field(default_factory=dict)
    """Label of the task for each label of these rows that has another name; false is 0, and true is 1."""

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

    @property
    def given_name(self) -> str | None:
        """Name of a test set that is known before its rows are read."""
        return self.name or self.subset


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """Task with rows of its own: files of any known format, or hub datasets.

    `head` is the kind of prediction to learn: `classification`, `regression`, `tokens` (a label for each word
    of a list), `span` (the answer to the question `text` in the passage `second`, with `label` as in SQuAD:
    `{text, answer_start}`) or `choice` (one of the columns in `choices`). Settings are chosen on `dev`;
    without it a share `dev_share` of the training rows is held out for this. Every set in `test` has its own
    score, and the task's score is their mean. With one test set for each language this measures cross-lingual
    transfer. With `columns: test` each test set has its own column `task/set` instead of the mean.

    The columns `text` and `second` may have images and clips, written as in the rows of a training:
    `{image: path}`, `{audio: path}`, `{parts: [{image: path}, "a text"]}`, or the images and sound of a hub
    dataset. A model that reads them gets both columns as the parts of one input, and heads of words and
    answers do not take them.
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
    columns: Literal["mean", "test"] = "mean"
    """Columns of scores: the mean over the test sets, or one for each test set, named `task/set`."""
    start: str | None = None
    """Another task of this evaluator, whose fine-tuned model this one starts from."""
    steps: Count | None = None
    """Optimizer steps, where they differ from the evaluator's; not with `epochs`."""
    epochs: Positive | None = None
    """Passes over the training rows, where they differ from the evaluator's; not with `steps`."""

    @property
    def scored_by(self) -> Metric:
        """Metric of the score."""
        return self.metric or METRICS[self.head][0]

    @property
    def test_by_column(self) -> Mapping[str, str | None]:
        """The test set of each of the task's columns; None for the mean over all."""
        if self.columns == "mean":
            return {self.name: None}
        names = [source.given_name or "" for source in self.test]
        return {f"{self.name}/{name}": name for name in names}

    @property
    def from_hub(self) -> bool:
        """True if some of the rows are a hub dataset's."""
        return any(source.hub for source in (self.train, *self.dev, *self.test))

    def with_columns_of(self, source: TaskRowSource) -> TaskEntry:
        """Return the task with the columns of one of its sets."""
        second = self.second if source.second is None else source.second or None
        return replace(
            self, text=source.text or self.text, second=second, label=source.label or self.label
        )

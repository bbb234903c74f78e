"""Options of fine-tunings, and the tasks: their rows, columns, head and metric."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from emberge import (
    Backbone,
    Count,
    DataEntry,
    DataRef,
    NonNegative,
    NumberRange,
    Positive,
    TextLength,
    WholeNumber,
    component,
)

_DEFAULT_STEPS = 1000
HeadKind = Literal["classification", "regression", "tokens", "span"]
Metric = Literal[
    "accuracy", "macro_f1", "f1", "matthews", "spearman", "entity_f1", "span_f1", "exact_match"
]
# Metrics of each head, its default first.
METRICS: dict[HeadKind, tuple[Metric, ...]] = {
    "classification": ("macro_f1", "accuracy", "f1", "matthews"),
    "regression": ("spearman",),
    "tokens": ("macro_f1", "accuracy", "entity_f1"),
    "span": ("span_f1", "exact_match"),
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
        shared = ("path", "hub", "subset", "split", "revision", "name", "limit")
        only = () if self.only is None else (self.only,)
        return DataEntry(only=only, **{name: getattr(self, name) for name in shared})

    @property
    def given_name(self) -> str | None:
        """Name of a test set that is known before its rows are read."""
        return self.name or self.subset


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """Task with rows of its own: files of any known format, or hub datasets.

    `head` is the kind of prediction to learn: `classification`, `regression`, `tokens` (a label for each word
    of a list) or `span` (the answer to the question `text` in the passage `second`, with `label` as in SQuAD:
    `{text, answer_start}`). Settings are chosen on `dev`; without it a tenth of the training rows is held out
    for this. Every set in `test` has its own score, and the task's score is their mean. With one test set for
    each language this measures cross-lingual transfer. With `columns: test` each test set has its own column
    `task/set` instead of the mean.

    The columns `text` and `second` may have images and clips, written as in the rows of a training:
    `{image: path}`, `{audio: path}`, `{parts: [{image: path}, "a text"]}`, or the images and sound of a hub
    dataset. A model that reads them gets both columns as the parts of one input, and heads of words and
    answers do not take them.
    """

    name: str
    train: TaskRowSource
    test: tuple[TaskRowSource, ...]
    dev: tuple[TaskRowSource, ...] = ()
    head: HeadKind = "classification"
    text: str = "text"
    """Column of the text, or of the list of words."""
    second: str | None = None
    """Column of the second text of a pair."""
    label: tuple[str, ...] = ("label",)
    """Column of the label, number, list of labels or answers; several columns of numbers are averaged."""
    labels: tuple[str, ...] = ()
    """Labels in the order of the head's outputs; by default the sorted labels of the training rows."""
    metric: Metric | None = None
    """Metric to report; by default the first one of the head."""
    columns: Literal["mean", "test"] = "mean"
    """Columns of scores: the mean over the test sets, or one for each test set, named `task/set`."""
    start: str | None = None
    """Another task of this evaluator, whose fine-tuned model this one starts from."""

    def __post_init__(self) -> None:
        for problem in self._find_problems():
            raise ValueError(f"task '{self.name}': {problem}")

    def _find_problems(self) -> Iterator[str]:
        head = self.head
        if self.scored_by not in METRICS[head]:
            yield f"metric: head {head} has no {self.metric}; choose of {', '.join(METRICS[head])}"
        if not self.label or (len(self.label) > 1 and head != "regression"):
            yield "label: it is one column, or several whose mean is learned with head: regression"
        if head == "span" and self.second is None:
            yield "second: head: span wants the column of the passage; name it as `second`"
        if not self.test:
            yield "test: there is nothing to test on; name a set"
        names = {source.given_name for source in self.test} - {None}
        if self.columns == "test" and len(names) < len(self.test):
            yield "columns: test names a column by the `name` of its test set; give each set another one"

    @property
    def has_classes(self) -> bool:
        """True if the head has an output for each of several labels."""
        return self.head in ("classification", "tokens")

    @property
    def scored_by(self) -> Metric:
        """Metric of the score."""
        return self.metric or METRICS[self.head][0]

    @property
    def test_by_score_column(self) -> Mapping[str, str | None]:
        """Name of the test set behind each of the task's columns of scores; None for the mean of all sets."""
        if self.columns == "mean":
            return {self.name: None}
        names = [source.given_name or "" for source in self.test]
        return {f"{self.name}/{name}": name for name in names}

    @property
    def sources(self) -> Sequence[TaskRowSource]:
        """The training set, the development sets and the test sets."""
        return (self.train, *self.dev, *self.test)

    @property
    def from_hub(self) -> bool:
        """True if some of the rows are a hub dataset's."""
        return any(source.hub for source in self.sources)

    def with_row_columns_of(self, source: TaskRowSource) -> TaskEntry:
        """Return the task with the columns that one of its sets has for text and label."""
        second = self.second if source.second is None else source.second or None
        return replace(
            self, text=source.text or self.text, second=second, label=source.label or self.label
        )


@dataclass(frozen=True)
class Setting:
    """Options of a fine-tuning that development data choose."""

    learning_rate: float
    batch_size: int

    def __str__(self) -> str:
        return f"learning rate {self.learning_rate:g}, batch size {self.batch_size}"


@dataclass(frozen=True, kw_only=True)
class TuningOptions:
    """Options of fine-tunings: how texts are read, how weights are trained, and with which seeds."""

    backbone: Backbone = component("text_encoder")
    """Encoder of a checkpoint."""
    max_length: TextLength | None = None
    """Tokens of a text at most; default: the model's own limit."""
    steps: Count | None = None
    """Optimizer steps of a training; default: 1,000, or what `epochs` give."""
    epochs: Positive | None = None
    """Passes over the training rows in place of `steps`; an epoch may end with a smaller batch."""
    batch_size: tuple[Count, ...] = (32,)
    """Rows of a step; of several sizes the best on development data is chosen, with the learning rate."""
    learning_rate: tuple[Positive, ...] = (5e-5,)
    """Learning rates to choose from on development data."""
    warmup: Annotated[float, NumberRange(least=0, below=1)] = 0.1
    """Share of the steps during which the learning rate rises."""
    weight_decay: NonNegative = 0.0
    """Decay of AdamW."""
    eval_steps: Count | None = None
    """Steps between scorings on development data; default: a twentieth of the steps."""
    patience: Positive | None = 1.0
    """Epochs without a better score on development data that end a training; null for none."""
    seeds: tuple[WholeNumber, ...] = (0,)
    """Seeds of the head, the order of rows and dropout."""

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise ValueError("give steps or epochs, not both")
        for option in ("learning_rate", "batch_size", "seeds"):
            values = getattr(self, option)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{option} wants different numbers, at least one; not {[*values]}")

    @property
    def settings(self) -> Sequence[Setting]:
        """All pairs of a learning rate and a batch size."""
        return [Setting(rate, size) for rate in self.learning_rate for size in self.batch_size]

    def count_steps(self, rows: int, batch_size: int) -> int:
        """Return the optimizer steps of a training on so many rows."""
        if self.epochs is None:
            return self.steps or _DEFAULT_STEPS
        return math.ceil(self.epochs * math.ceil(rows / batch_size))

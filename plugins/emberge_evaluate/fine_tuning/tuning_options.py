"""Options of fine-tunings that do not depend on the task."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from emberge import (
    Backbone,
    Count,
    NonNegative,
    NumberRange,
    Positive,
    TextLength,
    WholeNumber,
    component,
)

from emberge_evaluate.fine_tuning.task_entry import TaskEntry

_STEPS = 1000
Pooling = Literal["auto", "mean", "last", "bos", "late"]


@dataclass(frozen=True, kw_only=True)
class TuningLength:
    """Length of a training, either in optimizer steps or in passes over the training rows."""

    steps: int | None = None
    epochs: float | None = None

    def count_steps(self, rows: int, batch_size: int) -> int:
        """Return the optimizer steps; an epoch ends with a batch that may be smaller."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return math.ceil(self.epochs * math.ceil(rows / batch_size))


@dataclass(frozen=True, kw_only=True)
class TuningOptions:
    """Options of fine-tunings: how texts are read, how weights are trained, and with which seeds."""

    backbone: Backbone = component("text_encoder")
    """Encoder of a checkpoint."""
    pooling: Pooling = "auto"
    """Hidden state that the head of a whole text reads."""
    align: Literal["same", "previous"] = "same"
    """Token at which a word is labelled: its first token (`same`) or the token before that."""
    prompt: str = ""
    """Text put before each text."""
    max_length: TextLength | None = None
    """Tokens of a text at most; default: the model's own limit."""
    steps: Count | None = None
    """Optimizer steps of a training, unless the task sets its own; default: 1,000, or what `epochs` give."""
    epochs: Positive | None = None
    """Passes over the training rows in place of `steps`, unless the task sets its own."""
    batch_size: tuple[Count, ...] = (32,)
    """Rows of a step; of several sizes the best on development data is chosen, with the learning rate."""
    learning_rate: tuple[Positive, ...] = (5e-5,)
    """Learning rates to choose from on development data."""
    warmup: Annotated[float, NumberRange(least=0, below=1)] = 0.1
    """Share of the steps during which the learning rate rises."""
    weight_decay: NonNegative = 0.0
    """Decay of AdamW."""
    dropout: Annotated[float, NumberRange(least=0, below=1)] = 0.1
    """Dropout of the head."""
    eval_steps: Count | None = None
    """Steps between looks at development data; default: a twentieth of the steps."""
    patience: Positive | None = 1.0
    """Epochs without a better score on development data that end a training; null for none."""
    test_curves: bool = False
    """Score the test sets as often as development data, and draw these scores by step. What is tested at the
    end stays the state that is best on development data."""
    seeds: tuple[WholeNumber, ...] = (0,)
    """Seeds of the head, the order of rows and dropout."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type that passes compute in; weights are float32."""

    def length(self, entry: TaskEntry) -> TuningLength:
        """Return the length of a training on a task: the task's own, or else this one."""
        given = self if entry.steps is None and entry.epochs is None else entry
        if given.epochs is not None:
            return TuningLength(epochs=given.epochs)
        return TuningLength(steps=given.steps or _STEPS)

    @classmethod
    def of(cls, options: TuningOptions) -> TuningOptions:
        """Return the options as this class, without those of a subclass."""
        return cls(**{f.name: getattr(options, f.name) for f in dataclasses.fields(cls)})

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (option, message) for options that make no sense."""
        if self.steps is not None and self.epochs is not None:
            yield "epochs", "give steps or epochs, not both"
        for option in ("learning_rate", "batch_size", "seeds"):
            values = getattr(self, option)
            if not values or len(set(values)) < len(values):
                yield option, f"{option} wants different numbers, at least one; not {list(values)}"

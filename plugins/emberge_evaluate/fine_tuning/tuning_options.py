"""Options of fine-tunings that do not depend on the task."""

from __future__ import annotations

import dataclasses
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

Pooling = Literal["auto", "mean", "last", "bos", "late"]


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
    steps: Count = 1000
    """Optimizer steps of a training, unless the task sets its own number."""
    batch_size: Count = 32
    """Rows of a step."""
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
    seeds: tuple[WholeNumber, ...] = (0,)
    """Seeds of the head, the order of rows and dropout."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type that passes compute in; weights are float32."""

    @classmethod
    def of(cls, options: TuningOptions) -> TuningOptions:
        """Return the options as this class, without those of a subclass."""
        return cls(**{f.name: getattr(options, f.name) for f in dataclasses.fields(cls)})

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (option, message) for options that make no sense."""
        for option in ("learning_rate", "seeds"):
            values = getattr(self, option)
            if not values or len(set(values)) < len(values):
                yield option, f"{option} wants different numbers, at least one; not {list(values)}"

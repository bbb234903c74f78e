"""Input of one training with its options, and its result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias

from emberge.contracts import (
    AnyLoss,
    Backbone,
    Count,
    Dataset,
    EmbeddingKind,
    Figure,
    Negatives,
    NonNegative,
    NumberRange,
    PerDataset,
    Positive,
    Sampler,
    Share,
    TextLength,
    WholeNumber,
)
from emberge.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from emberge.ranks import RankGroup

_USUAL_WARMUP = 0.1
# Share of the steps at the end over which the schedule `warmup_stable_decay` falls.
DECAY_SHARE = 0.1
NO_OTHER_ROWS_MESSAGE = (
    "an encoder of pairs has no scores of other rows' texts; take negatives: hard_only, and rows with "
    "negatives of their own (mine_hard_negatives)"
)
Schedule = Literal["linear", "cosine", "constant", "warmup_stable_decay"]
Precision = Literal["auto", "fast", "float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options for the texts that are drawn from the data, and for the chunks in which they are encoded."""

    epochs: Positive | None = None
    """Passes over the data, 1 by default; a fraction is the first batches of a pass."""
    max_steps: Count | None = None
    """Number of batches, instead of `epochs`."""
    max_length: PerDataset[TextLength | None] = field(default_factory=PerDataset)
    """Tokens of a text at most, by task or dataset; by default the model's own limit."""
    query_length: PerDataset[TextLength | None] = field(default_factory=PerDataset)
    """Tokens of an anchor at most, by task or dataset; by default `max_length`."""
    document_length: PerDataset[TextLength | None] = field(default_factory=PerDataset)
    """Tokens of a positive or negative at most, by task or dataset; by default `max_length`."""
    query_prompt: PerDataset[str] = field(default_factory=PerDataset)
    """Text before anchors, and before every text of a symmetric dataset, by task or dataset. A prompt given
    by dataset is used first, then the data's own prompt, then a prompt given by task, then the model's."""
    document_prompt: PerDataset[str] = field(default_factory=PerDataset)
    """Text before positives and negatives, by task or dataset; by default the model's own."""
    positives: Count = 1
    """Positives of a row in a batch, drawn again in each epoch."""
    hard_negatives: WholeNumber = 7
    """Largest number of hard negatives of a row in a batch, drawn again in each epoch; rows with fewer than
    other rows of their batch repeat theirs."""
    negatives: PerDataset[Negatives] = field(default_factory=PerDataset)
    """Negatives by task or dataset: `in_batch` also takes other rows' texts, `hard_only` takes only the row's
    own hard negatives; `auto` asks the loss: for infonce it is
    `in_batch` for retrieval and reranking."""
    packing: TextLength | None = None
    """Tokens in a packed row: for losses over tokens, several texts are computed in one row without padding,
    and do not attend to each other. By default each text is its own row."""
    token_budget: Count | None = None
    """Padded size of a chunk in tokens; by default chosen by the device and its free memory."""
    kept_tokens: WholeNumber | None = None
    """Number of tokens whose activations are kept for the backward pass instead of being computed twice; by
    default as many as fit into memory."""

    def __post_init__(self) -> None:
        if self.epochs is not None and self.max_steps is not None:
            raise ValueError("give epochs or max_steps, not both")

    @property
    def lengths(self) -> tuple[int | None, ...]:
        """All limits on the tokens of a text that the options set."""
        options = (self.max_length, self.query_length, self.document_length)
        return tuple(length for option in options for length in option.values)


@dataclass(frozen=True, kw_only=True)
class FitOptions(TextOptions):
    """Options of a training. Names are those of transformers' TrainingArguments where one exists."""

    learning_rate: NonNegative = 2e-5
    """The highest learning rate, reached at the end of the warm-up."""
    warmup_ratio: Share | None = None
    """Share of the steps over which the learning rate rises from near 0; by default 0.1."""
    warmup_steps: WholeNumber | None = None
    """Steps over which the learning rate rises, in place of a share."""
    schedule: Schedule = "linear"
    """Course of the learning rate after the warm-up; `warmup_stable_decay` falls over the last tenth of the
    steps."""
    weight_decay: NonNegative = 0.01
    """Decay of AdamW; biases and norms have none."""
    max_grad_norm: Positive | None = 1.0
    """Longer gradients are cut to this norm; null cuts none."""
    adam_beta2: Annotated[float, NumberRange(least=0, below=1)] = 0.999
    """Decay of AdamW's mean of squared gradients."""
    adam_epsilon: Positive = 1e-8
    """Added to the denominator of AdamW's update."""
    precision: Precision = "auto"
    """Number type of forward passes: `auto` is bfloat16 if the GPU supports it, and `fast` also if the
    processor multiplies it by itself. Weights and optimizer stay float32."""
    dropout: bool = True
    """Use the model's dropout; without it equal texts of a batch are encoded once."""
    save_steps: Count | None = None
    """Steps from one saved state to the next; by default about every half minute."""
    keep_last: WholeNumber = 0
    """Number of models to keep as inputs of merges: the newest of the models saved every `save_steps` steps,
    or at the end of each epoch."""
    logging_steps: Count | None = None
    """Steps from one logged point to the next; by default about 500 points are logged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup_ratio is not None and self.warmup_steps is not None:
            raise ValueError("give warmup_ratio or warmup_steps, not both")
        total_share = self.compute_warmup_share(self.max_steps) + DECAY_SHARE
        if self.schedule == "warmup_stable_decay" and total_share > 1 + 1e-9:
            raise ValueError(
                f"the warm-up and the decay are {total_share:g} of the steps together; lower the warm-up"
            )

    def compute_warmup_share(self, steps: int | None) -> float:
        """Return the share of `steps` that the warm-up takes; 0 for `warmup_steps` if `steps` is None."""
        if self.warmup_steps is None:
            return _USUAL_WARMUP if self.warmup_ratio is None else self.warmup_ratio
        return self.warmup_steps / steps if steps else 0.0

    def count_warmup_steps(self, steps: int) -> int:
        """Return the number of warm-up steps of a training that has `steps` steps."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        return math.ceil(self.compute_warmup_share(steps) * steps)

    @classmethod
    def of(cls, options: TextOptions, **changes: Any) -> FitOptions:
        """Return the options of a training from the options of the step that runs it.

        Options that the step does not have get their defaults; `changes` override both.
        """
        names = [option.name for option in dataclasses.fields(FitOptions)]
        values = {name: getattr(options, name) for name in names if hasattr(options, name)}
        return FitOptions(**{**values, **changes})


def resolve_negatives(
    negatives: PerDataset[Negatives], embedding_kind: EmbeddingKind
) -> PerDataset[Negatives]:
    """Return the negatives by dataset for a backbone of this kind of embedding.

    An encoder of pairs takes only those of the row itself, since it has not read pairs with other rows'
    texts.

    Raises:
        DataError: if such an encoder is asked for other rows' texts.
    """
    if embedding_kind != "pair_score":
        return negatives
    chosen = (negatives.default, *negatives.by_task.values(), *negatives.by_dataset.values())
    if "in_batch" in chosen:
        raise DataError(NO_OTHER_ROWS_MESSAGE)
    return PerDataset(default="hard_only")


@dataclass(frozen=True)
class FitResult:
    """Result of a training, without its model.

    `rows_by_dataset` has the numbers of rows after the samplers' selection; only `fit` fills it. `seconds`
    and `cpu_seconds` are summed over interruptions, without work that was lost; `cpu_seconds` are those of
    all threads of all ranks. `checkpoints` are the paths of kept models inside the result.
    `scores` are pairs (step, score) of the steps that the trainee scored, and `result_step` is the step whose
    parameters are the result. `figures` show the model's own numbers, such as the load of its
    experts over the steps.
    """

    examples: int
    steps: int
    seconds: float
    rows_by_dataset: Mapping[str, int] = field(default_factory=dict)
    checkpoints: tuple[Path, ...] = ()
    scores: tuple[tuple[int, float], ...] = ()
    result_step: int = 0
    step_losses: tuple[tuple[str, float], ...] = field(default=(), repr=False)
    """(dataset, training loss) of every optimizer step, including steps before an interruption."""
    cpu_seconds: float = 0.0
    figures: tuple[Figure, ...] = field(default=(), repr=False)

    @property
    def last_loss(self) -> float:
        """Mean loss of the last tenth of the steps, at least of one."""
        losses = [loss for _, loss in self.step_losses[-max(1, self.steps // 10) :]]
        return sum(losses) / len(losses)


@dataclass(frozen=True)
class EarlyStopping:
    """Scores during a training, and the rule by which they end it.

    After every `every` steps and after the last step, the trainee scores its parameters in memory; larger is
    better. The training ends after `patience` consecutive scores that are not better than the best score
    before them; with None it runs to the end. The earliest of the best parameters are the result.
    """

    every: int
    patience: int | None = None


class Progress(Protocol):
    """A function that reports progress, as `Workspace.progress` does."""

    def __call__(self, done: int, total: int, unit: str = "", note: str = "", /) -> None:
        """Report that `done` of `total` units are done."""


# Function from entries of a dataset's table [*k] to the embeddings of another model [*k, d].
ReadGuide: TypeAlias = "Callable[[NDArray[np.int64]], Tensor]"


@dataclass(frozen=True)
class GuideRequest:
    """Datasets of a training whose losses may read a guide, and means to compute its embeddings.

    `reads_rows_again` is True if rows are read several times, as in a second epoch.
    """

    datasets: Sequence[Dataset]
    device: str
    store: Path
    reads_rows_again: bool
    ranks: RankGroup
    progress: Progress


@dataclass(frozen=True, kw_only=True)
class FitJob:
    """Complete input of a training: the same job gives the same result, byte for byte, on equal machines."""

    backbone: Backbone
    """Recipe for the encoder of the checkpoint."""
    checkpoint: Path
    """The model folder from which the training starts."""
    datasets: Sequence[Dataset]
    sampler: Sequence[Sampler]
    """Samplers that select rows; the last one groups them into batches."""
    losses: PerDataset[tuple[AnyLoss, ...]]
    """The weighted sum of losses of each dataset; the task `text` takes losses over tokens, or of
    single texts' embeddings."""
    options: FitOptions = field(default_factory=FitOptions)
    seed: int = 0
    guides: Callable[[GuideRequest], Mapping[str, ReadGuide]] | None = None
    """A function that returns by dataset how to read the embeddings of a guide, for losses that have one."""

"""What a training can be told, and what it tells in the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from emberge.contracts.dataset import Rows
from emberge.contracts.option import PerDataset
from emberge.contracts.sampler import Negatives

__all__ = ["FitOptions", "FitResult", "Precision", "Schedule"]

Schedule = Literal["linear", "cosine", "constant", "warmup_stable_decay"]
Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """How to train. Names are those of transformers' TrainingArguments where one exists.

    It lasts `max_steps` or `epochs`, by default one; a fraction of one is its first batches. The
    `learning_rate` rises over `warmup_ratio` of the steps and then follows `schedule`, with `restart` anew in
    each stretch of a sampler that puts stages, tasks or datasets one after another. AdamW has `adam_beta1`,
    `adam_beta2` and `adam_epsilon`; `weight_decay` spares biases and norms; gradients longer than
    `max_grad_norm` are cut. `precision` auto is bfloat16 where a GPU has it; weights and optimizer stay
    float32. Lengths count tokens and may differ by task or dataset; those of queries and documents
    (`query_length`, `document_length`) default to `max_length`, and that to the model's own.
    `query_prompt` is put before anchors, and before every text of a symmetric set, `document_prompt` before
    positives and negatives, by task or dataset: the prompt of the data itself comes before one given by
    task, the model's own after it.

    A row gives `positives` positives and up to `hard_negatives` negatives, drawn anew each epoch; rows with
    fewer repeat theirs (`fill: repeat`) or leave places out (`mask`). `negatives` says by task or dataset
    whether other rows' texts are negatives too: auto is yes for retrieval and reranking. Without `dropout`
    equal texts of a batch are encoded once.

    `token_budget` is the padded size of a chunk in tokens, `kept_tokens` how many tokens' activations are
    kept for the backward pass instead of being computed again; neither changes what is learned but by
    rounding. A state to resume from is saved every `save_steps` steps, or about every half minute;
    `keep_last` of the models at those steps (or at the ends of epochs) stay as merge inputs.
    `logging_steps` None logs up to about 500 points.
    """

    epochs: float | None = None
    max_steps: int | None = None
    learning_rate: float = 2e-5
    warmup_ratio: float = 0.1
    schedule: Schedule = "linear"
    restart: bool = False
    weight_decay: float = 0.01
    max_grad_norm: float | None = 1.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    precision: Precision = "auto"
    max_length: PerDataset[int | None] = field(default_factory=PerDataset)
    query_length: PerDataset[int | None] = field(default_factory=PerDataset)
    document_length: PerDataset[int | None] = field(default_factory=PerDataset)
    query_prompt: PerDataset[str] = field(default_factory=PerDataset)
    document_prompt: PerDataset[str] = field(default_factory=PerDataset)
    positives: int = 1
    hard_negatives: int = 7
    fill: Literal["repeat", "mask"] = "repeat"
    negatives: PerDataset[Negatives] = field(default_factory=PerDataset)
    dropout: bool = True
    token_budget: int | None = None
    kept_tokens: int | None = None
    save_steps: int | None = None
    keep_last: int = 0
    logging_steps: int | None = None

    def __post_init__(self) -> None:
        least = {
            "max_steps": 1,
            "positives": 1,
            "hard_negatives": 0,
            "token_budget": 1,
            "kept_tokens": 0,
            "save_steps": 1,
            "keep_last": 0,
            "logging_steps": 1,
            "learning_rate": 0,
            "weight_decay": 0,
        }
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ValueError(f"{name} must be at least {bound}, not {value}")
        for name in ("max_length", "query_length", "document_length"):
            self._settle_length(name)
        if self.epochs is not None and self.max_steps is not None:
            raise ValueError("give epochs or max_steps, not both")
        if self.epochs is not None and self.epochs <= 0:
            raise ValueError(f"epochs must be above 0, not {self.epochs:g}")
        if not 0 <= self.warmup_ratio <= 1:
            raise ValueError(f"warmup_ratio is a share from 0 to 1, not {self.warmup_ratio:g}")
        if self.max_grad_norm is not None and self.max_grad_norm <= 0:
            raise ValueError(f"max_grad_norm must be above 0, not {self.max_grad_norm:g}")

    def _settle_length(self, name: str) -> None:
        given = getattr(self, name)
        if not isinstance(given, PerDataset):
            # A bare number is the default, in Python as in a recipe.
            given = PerDataset(default=given)
            object.__setattr__(self, name, given)
        for value in (given.default, *given.by_task.values(), *given.by_dataset.values()):
            if value is not None and value < 2:
                raise ValueError(f"{name} must be at least 2, not {value}")


@dataclass(frozen=True)
class FitResult:
    """What a training did.

    `pool` counts the rows per dataset after the samplers' selection; `bags` holds their numbers where they
    are not all of them in order. `losses` are means over each dataset's last tenth of steps (at least one),
    `curve` is (step, mean loss since the point before). `seconds` and `cpu_seconds`, those of all threads of
    the first rank's process, add up over interruptions, but for work that was lost. `checkpoints` are paths
    of kept models inside the result. `scores` are (step, score) of the models that were scored on the way,
    `result_step` the step whose model is the result.
    """

    examples: int
    steps: int
    seconds: float
    losses: Mapping[str, float]
    curve: tuple[tuple[int, float], ...]
    pool: Mapping[str, int]
    checkpoints: tuple[Path, ...] = ()
    bags: Mapping[str, Rows] = field(default_factory=dict, compare=False)
    scores: tuple[tuple[int, float], ...] = ()
    result_step: int = 0
    step_losses: tuple[tuple[str, float], ...] = field(default=(), repr=False)
    """(dataset, training loss) of every optimizer step, those before an interruption too."""
    cpu_seconds: float = 0.0

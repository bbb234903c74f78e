"""A small plugin that has one of everything a recipe can say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from emberge import (
    Artifact,
    Backbone,
    Batch,
    DataEntry,
    DataRef,
    Evaluator,
    FileRef,
    Loss,
    MergeStrategy,
    MergeTransform,
    ModelRef,
    NumberRange,
    PerDataset,
    PerModel,
    PerTensor,
    Pool,
    Sampler,
    Stage,
    Step,
    StepRef,
    TokenLoss,
    Workspace,
    chain,
    component,
    hookimpl,
)
from emberge.contracts import ChainSpec


@dataclass(frozen=True, kw_only=True)
class Bag(Sampler):
    """Keep a share of every dataset. `ratio` is the share kept, above 0 and up to 1."""

    ratio: float = 1.0
    draw: int = 0
    """Members of one ratio differ by it."""

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError(f"ratio is a share above 0 and up to 1, not {self.ratio:g}")

    def select(self, pool: Pool, seed: int) -> Pool:
        return pool


@dataclass(frozen=True, kw_only=True)
class Shuffle(Sampler):
    """Make batches of shuffled rows."""

    batch_size: PerDataset[int] = field(default_factory=lambda: PerDataset(default=32))

    def batches(self, pool: Pool, seed: int) -> Iterator[Batch]:
        yield from ()


@dataclass(frozen=True, kw_only=True)
class Contrast(Loss):
    """Pull pairs together."""

    temperature: Annotated[float, NumberRange(above=0)] = 0.05
    """What similarities are divided by."""
    negatives: Literal["auto", "in_batch"] = "auto"


@dataclass(frozen=True, kw_only=True)
class Rank(Loss):
    """Order pairs by their score."""


@dataclass(frozen=True, kw_only=True)
class Mask(TokenLoss):
    """Guess hidden words."""

    share: float = 0.2


@dataclass(frozen=True, kw_only=True)
class Plain(Backbone):
    """The checkpoint as it is."""

    pooling: Literal["mean", "cls", "last"] | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Cut(MergeTransform):
    """Keep the largest part of every delta."""

    density: PerModel = PerModel(0.5, within=(0, 1))
    """The share kept."""


@dataclass(frozen=True, kw_only=True)
class Vote(MergeStrategy):
    """Average what agrees in sign."""

    scale: PerTensor = PerTensor(1.0)
    normalize: bool = True


@dataclass(frozen=True, kw_only=True)
class Mean(MergeStrategy):
    """The weighted mean."""


@dataclass(frozen=True, kw_only=True)
class Grouped(MergeTransform):
    """Merge each group first."""

    by: MergeStrategy = component("mean")
    deltas: FileRef | None = None


@dataclass(frozen=True, kw_only=True)
class Board(Evaluator):
    """Score on a board of tasks."""

    tasks_: tuple[str, ...] = ()
    data: tuple[DataRef, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Fit(Step):
    """Train a model."""

    produces = "model"

    model: ModelRef
    """What to start from."""
    data: tuple[DataEntry, ...]
    sampler: tuple[Sampler, ...] = component("shuffle")
    loss: PerDataset[tuple[Loss | TokenLoss, ...]] = component("contrast")
    backbone: Backbone = component("plain")
    learning_rate: float = 2e-5
    max_steps: int | None = None
    precision: Literal["auto", "bfloat16"] = "auto"
    log: Path | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    notes: Any = None
    seed: int | None = None

    def run(self, workspace: Workspace) -> Artifact:
        return Artifact("model", details={"rate": self.learning_rate})


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model to merge."""

    model: ModelRef
    weight: PerTensor = PerTensor(1.0)
    group: str | None = None
    name: str | None = None
    options: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Another strategy for some tensors."""

    filter: str
    strategy: tuple[Stage, ...]


@dataclass(frozen=True, kw_only=True)
class Blend(Step):
    """Merge models."""

    produces = "model"

    models: tuple[Entry, ...]
    strategy: tuple[Stage, ...]
    base: ModelRef | None = None
    weights: Literal["equal", "size"] | tuple[float, ...] = "equal"
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What must hold."""

    model: ModelRef
    not_worse_than: tuple[ModelRef, ...]
    margin: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Rate(Step):
    """Score models."""

    produces = "scores"

    models: tuple[ModelRef, ...]
    evaluators: tuple[Evaluator, ...]
    require: tuple[Claim, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Tell(Step):
    """Write a page."""

    produces = "report"

    of: tuple[StepRef, ...]
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Corpus(Step):
    """Make data."""

    produces = "data"

    limit: int = 100


@dataclass(frozen=True, kw_only=True)
class Norms(Step):
    """Measure norms."""

    produces = "statistics"

    models: tuple[ModelRef, ...]


@dataclass(frozen=True, kw_only=True)
class Pairs(Step):
    """Merge all pairs."""

    produces = "model"

    models: tuple[ModelRef, ...]

    def expand(self) -> Mapping[str, Step]:
        if len(self.models) == 2:
            return {"": self}
        several = range(len(self.models))
        pairs = [(i, j) for i in several for j in several if i < j]
        return {f"{i}-{j}": Pairs(models=(self.models[i], self.models[j])) for i, j in pairs}


@hookimpl
def register_samplers() -> Mapping[str, type[Sampler]]:
    return {"bag": Bag, "shuffle": Shuffle}


@hookimpl
def register_losses() -> Mapping[str, type[Loss] | type[TokenLoss]]:
    return {"contrast": Contrast, "rank": Rank, "mask": Mask}


@hookimpl
def register_backbones() -> Mapping[str, type[Backbone]]:
    return {"plain": Plain}


@hookimpl
def register_merge_transforms() -> Mapping[str, type[MergeTransform]]:
    return {"cut": Cut, "grouped": Grouped}


@hookimpl
def register_merge_strategies() -> Mapping[str, type[MergeStrategy] | ChainSpec]:
    return {
        "vote": Vote,
        "mean": Mean,
        "ties": chain(Cut, Vote, doc="Cut, then vote.", density=0.2),
        "loud": chain(Vote, doc="A vote, doubled.", scale=2.0),
    }


@hookimpl
def register_evaluators() -> Mapping[str, type[Evaluator]]:
    return {"board": Board}


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    return {
        "fit": Fit,
        "blend": Blend,
        "rate": Rate,
        "tell": Tell,
        "corpus": Corpus,
        "norms": Norms,
        "pairs": Pairs,
    }

"""A short training on one dataset, or on all datasets of a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from emberge import (
    Artifact,
    Backbone,
    Count,
    DataEntry,
    Loss,
    ModelRef,
    PerDataset,
    Preflight,
    Problem,
    Sampler,
    Step,
    WholeNumber,
    Workspace,
    component,
    stable_seed,
)
from emberge.training import FitOptions


@dataclass(frozen=True, kw_only=True)
class ShortTrainingOptions(FitOptions):
    """A model, datasets, and the settings of every short training."""

    model: ModelRef
    """The model that every training starts from, and that the mixture is for."""
    data: tuple[DataEntry, ...]
    """The datasets, each or as a catalogue; if a step writes the catalogue, `only` names its sets."""
    loss: PerDataset[tuple[Loss, ...]]
    """The losses, as for `train`."""
    sampler: tuple[Sampler, ...] = component("batch_shuffle")
    """The sampler that makes the batches of a short training."""
    backbone: Backbone = component("text_encoder")
    """The recipe for turning a checkpoint into an encoder."""
    max_steps: Count | None = 20
    """Steps of each short training."""
    seed: WholeNumber | None = None
    """The seed that all trainings' seeds are drawn from; the recipe's by default."""


@dataclass(frozen=True, kw_only=True)
class ShortTraining(ShortTrainingOptions, Step):
    """Training number `draw` on the datasets of one group, by the step `train`."""

    produces = "model"
    every_rank = True
    loads = ("torch",)

    draw: Count

    def adapts(self) -> ModelRef | None:
        return self.model if self.backbone.leaves_adapter else None

    def check(self, context: Preflight) -> Iterable[Problem]:
        training: Step = context.plugins.find("train", "step").build_like(self)
        return training.check(context)

    def run(self, workspace: Workspace) -> Artifact:
        training: Step = workspace.plugins.find("train", "step").build_like(self)
        seed = stable_seed(workspace.seed, f"short training {self.draw}") % 2**32
        return training.run(cast(Workspace, _OtherSeed(workspace, seed)))


@dataclass(frozen=True)
class _OtherSeed:
    """Workspace of a step, with another seed."""

    workspace: Workspace
    seed: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.workspace, name)

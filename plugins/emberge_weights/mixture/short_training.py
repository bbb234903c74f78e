"""A short training on one dataset, or on a cluster of datasets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

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
    names: tuple[str, ...]
    """Labels of the datasets, for the options by dataset."""

    def adapts(self) -> ModelRef | None:
        return self.model if self.backbone.leaves_adapter else None

    def check(self, context: Preflight) -> Iterable[Problem]:
        problems = list(self._build_training(context.plugins, 0).check(context))
        return problems if self.draw == 1 else ()  # the others have the same

    def run(self, workspace: Workspace) -> Artifact:
        seed = stable_seed(workspace.seed, f"short training {self.draw}") % 2**32
        return self._build_training(workspace.plugins, seed).run(workspace)

    def _build_training(self, plugins: object, seed: int) -> Step:
        step_type = plugins.find("train", "step").type  # type: ignore[attr-defined]
        shared_names = {option.name for option in dataclasses.fields(ShortTrainingOptions)} & {
            option.name for option in dataclasses.fields(step_type)
        }
        options = {name: getattr(self, name) for name in shared_names}
        training: Step = step_type(**{**options, "seed": seed})
        return training

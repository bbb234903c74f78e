"""The options that a study of interactions and each of its trainings share."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import (
    Backbone,
    Count,
    DataEntry,
    Loss,
    ModelRef,
    PerDataset,
    Sampler,
    WholeNumber,
    component,
)
from emberge.training import FitOptions

__all__ = ["StudyOptions"]


@dataclass(frozen=True, kw_only=True)
class StudyOptions(FitOptions):
    """A model, datasets, and the settings of every training of a study."""

    model: ModelRef
    """The model that every training starts from."""
    data: tuple[DataEntry, ...]
    """The datasets, one by one or as a catalogue; `only` names the sets of one that a step makes."""
    loss: PerDataset[tuple[Loss, ...]]
    """The losses, as for `train`."""
    sampler: tuple[Sampler, ...] = component("batch_shuffle")
    """The sampler that makes batches, each of one dataset."""
    backbone: Backbone = component("text_encoder")
    """The recipe for turning a checkpoint into an encoder."""
    seed: WholeNumber | None = None
    """The seed of all trainings; the recipe's by default."""
    rows: Count | None = None
    """The number of rows of every dataset's sample; by default as many as the smallest has.

    If it is given, a dataset that is added later costs only its own trainings.
    """

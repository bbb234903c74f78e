"""Options of the `train` step."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import (
    Backbone,
    DataEntry,
    Loss,
    ModelRef,
    PerDataset,
    Sampler,
    TokenLoss,
    WholeNumber,
    component,
)
from emberge.training import FitOptions


@dataclass(frozen=True, kw_only=True)
class TrainOptions(FitOptions):
    """Options of the step `train`: those of every training, its model, data, sampler and losses."""

    model: ModelRef
    """The model that training starts from."""
    data: tuple[DataEntry, ...]
    """Files, catalogues or steps that make data."""
    sampler: tuple[Sampler, ...]
    """A chain that selects examples and, last, groups them into batches."""
    loss: PerDataset[tuple[Loss | TokenLoss, ...]]
    """A weighted sum of losses for every task or dataset; losses over tokens, such as mlm, are for the task
    `text`."""
    backbone: Backbone = component("text_encoder")
    """Backbone that loads the model's folder; the folder's modules and settings are kept."""
    seed: WholeNumber | None = None
    """Seed of batches, drawn texts and dropout; by default the recipe's."""

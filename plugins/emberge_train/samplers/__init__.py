"""Samplers, one per file."""

from __future__ import annotations

from collections.abc import Mapping


def samplers() -> Mapping[str, str]:
    """Return the plugin's samplers by name."""
    return {
        "batch_shuffle": "emberge_train.samplers.batch_shuffle:BatchShuffle",
        "dataset_sequential": "emberge_train.samplers.dataset_sequential:DatasetSequential",
        "mixture": "emberge_train.samplers.mixture:Mixture",
        "proportional": "emberge_train.samplers.proportional:Proportional",
        "task_sequential": "emberge_train.samplers.task_sequential:TaskSequential",
        "two_stage": "emberge_train.samplers.two_stage:TwoStage",
    }

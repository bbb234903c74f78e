"""Samplers: one a file."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Sampler


def samplers() -> Mapping[str, type[Sampler]]:
    """Return the plugin's samplers by name."""
    from emberge_train.samplers.batch_shuffle import BatchShuffle
    from emberge_train.samplers.dataset_sequential import DatasetSequential
    from emberge_train.samplers.mixture import Mixture
    from emberge_train.samplers.proportional import Proportional
    from emberge_train.samplers.round_robin import RoundRobin
    from emberge_train.samplers.task_sequential import TaskSequential
    from emberge_train.samplers.temperature import Temperature
    from emberge_train.samplers.two_stage import TwoStage

    return {
        "batch_shuffle": BatchShuffle,
        "dataset_sequential": DatasetSequential,
        "mixture": Mixture,
        "proportional": Proportional,
        "round_robin": RoundRobin,
        "task_sequential": TaskSequential,
        "temperature": Temperature,
        "two_stage": TwoStage,
    }

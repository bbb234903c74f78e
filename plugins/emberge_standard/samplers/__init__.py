"""Samplers: one a file."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Sampler


def samplers() -> Mapping[str, type[Sampler]]:
    """The plugin's samplers by name."""
    from emberge_standard.samplers.batch_shuffle import BatchShuffle
    from emberge_standard.samplers.dataset_sequential import DatasetSequential
    from emberge_standard.samplers.proportional import Proportional
    from emberge_standard.samplers.round_robin import RoundRobin
    from emberge_standard.samplers.task_sequential import TaskSequential
    from emberge_standard.samplers.temperature import Temperature
    from emberge_standard.samplers.two_stage import TwoStage

    return {
        "batch_shuffle": BatchShuffle,
        "dataset_sequential": DatasetSequential,
        "proportional": Proportional,
        "round_robin": RoundRobin,
        "task_sequential": TaskSequential,
        "temperature": Temperature,
        "two_stage": TwoStage,
    }

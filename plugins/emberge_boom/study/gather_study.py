"""The losses of a study, gathered from its trainings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from emberge import Artifact, DataError

from emberge_boom.study.affinity import (
    Distance,
    LossProtocol,
    LossScale,
    Pair,
    Ranking,
    Steps,
    compare,
    distance,
    in_own_scale,
    mean_loss,
)
from emberge_boom.study.study import Interaction, Study
from emberge_boom.study.study_run import read_steps
from emberge_boom.study.tree import Linkage, grow


def gather_study(
    runs: Iterable[tuple[Path, Artifact]],
    *,
    loss_protocol: LossProtocol = "paper",
    distance: Distance = "paper",
    linkage: Linkage = "average",
    scale: LossScale = "loss",
    ranking: Ranking = "difference",
) -> Study:
    """Build the study from the folders and artifacts of its runs.

    Raises:
        DataError: if losses cannot be compared.
    """
    facts: dict[str, Mapping[str, Any]] = {}
    separate_steps: dict[str, Steps] = {}
    pairs: dict[Pair, Steps] = {}
    for folder, artifact in runs:
        datasets = artifact.details["datasets"]
        facts |= datasets
        names = sorted(datasets)
        steps = read_steps(folder)
        _refuse_mixed(steps, names)
        if len(names) == 1:
            separate_steps[names[0]] = steps
        else:
            pairs[names[0], names[1]] = steps
    return study_of(
        separate_steps,
        pairs,
        facts,
        loss_protocol=loss_protocol,
        distance=distance,
        linkage=linkage,
        scale=scale,
        ranking=ranking,
    )


def study_of(
    separate_steps: Mapping[str, Steps],
    pairs: Mapping[Pair, Steps],
    facts: Mapping[str, Mapping[str, Any]],
    *,
    loss_protocol: LossProtocol = "paper",
    distance: Distance = "paper",
    linkage: Linkage = "average",
    scale: LossScale = "loss",
    ranking: Ranking = "difference",
) -> Study:
    """Build the study from losses; `facts` has each dataset's `task`, sampled `rows` and size (`of`).

    Raises:
        DataError: if losses cannot be compared.
    """
    names = tuple(sorted(separate_steps))
    separate_losses = {name: mean_loss(separate_steps[name]) for name in names}
    if scale == "own":
        pairs = {pair: in_own_scale(steps, separate_steps) for pair, steps in pairs.items()}
        separate_steps = {
            name: in_own_scale(steps, separate_steps) for name, steps in separate_steps.items()
        }
    interactions = []
    for pair in combinations(names, 2):
        joint_steps = pairs[pair] if pair in pairs else pairs[pair[1], pair[0]]
        joint_loss, separate_loss = compare(pair, joint_steps, separate_steps, loss_protocol)
        interactions.append(
            Interaction(
                pair,
                joint_loss,
                separate_loss,
                _measure_distance(pair, joint_loss, separate_loss, distance),
            )
        )
    rows = min(int(facts[name]["rows"]) for name in names)
    matrix: list[list[float | None]] = [[None] * len(names) for _ in names]
    for interaction in interactions:
        a, b = (names.index(name) for name in interaction.pair)
        matrix[a][b] = matrix[b][a] = interaction.distance
    return Study(
        names=names,
        tasks={name: str(facts[name]["task"]) for name in names},
        sizes={name: int(facts[name]["of"]) for name in names},
        rows=rows,
        singles=separate_losses,
        interactions=tuple(interactions),
        tree=grow(matrix, linkage),
        linkage=linkage,
        distance=distance,
        loss_protocol=loss_protocol,
        scale=scale,
        ranking=ranking,
    )


def _measure_distance(pair: Pair, joint: float, separate: float, formula: Distance) -> float:
    if separate <= 0:
        raise DataError(
            f"the mean loss of '{pair[0]}' and '{pair[1]}' apart is {separate:.3g}; distances are "
            "relative to "
            "it and need losses above 0"
        )
    return distance(joint, separate, formula)


def _refuse_mixed(steps: Steps, names: list[str]) -> None:
    for name, _ in steps:
        if name not in names:
            raise DataError(
                f"a batch held '{name}', and a study needs batches of one dataset each; use another sampler, "
                "such as batch_shuffle"
            )

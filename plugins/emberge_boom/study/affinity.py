"""Affinities of datasets: joint and separate losses, and the distances computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from emberge import DataError

LossProtocol = Literal["paper", "matched"]
LossScale = Literal["loss", "own"]
Distance = Literal["paper", "ratio"]
Ranking = Literal["difference", "ratio"]
Pair = tuple[str, str]
# (dataset, training loss) of every optimizer step of a training.
Steps = Sequence[tuple[str, float]]


def mean_loss(steps: Steps) -> float:
    """Return the mean training loss over all steps."""
    return _compute_mean([loss for _, loss in steps])


def in_own_scale(steps: Steps, separate_steps: Mapping[str, Steps]) -> Steps:
    """Return the losses of steps, each divided by the mean loss of its dataset's separate training.

    Raises:
        DataError: if a mean loss is not above 0.
    """
    units = {name: mean_loss(separate_steps[name]) for name in {name for name, _ in steps}}
    for name, unit in units.items():
        if unit <= 0:
            raise DataError(f"the mean loss of '{name}' is {unit:.3g}, and no unit for others")
    return [(name, loss / units[name]) for name, loss in steps]


def compare(
    pair: Pair, joint_steps: Steps, separate_steps: Mapping[str, Steps], how: LossProtocol
) -> tuple[float, float]:
    """Return a pair's loss when trained jointly and separately: (LC, LA) of BOOM (arXiv:2602.05787).

    As in the paper, LC is the mean loss over the steps of the joint training, and LA the mean of the two
    separate trainings' mean losses. LC and LA differ without any interaction if the two datasets take unequal
    numbers of steps, or if a joint training gives each of them fewer steps than it has alone. `matched`
    instead compares the steps of each dataset: the mean over its first m steps in the joint training with the
    mean over its first m steps alone, where m is the number of steps that both trainings have; then it
    averages the two datasets. Either way, a joint training has more steps in total, so gains from mere
    additional training count as synergy.

    Raises:
        DataError: if a dataset has no step to compare.
    """
    if how == "paper":
        return mean_loss(joint_steps), _compute_mean(
            [mean_loss(separate_steps[name]) for name in pair]
        )
    joint, separate_losses = [], []
    for name in pair:
        joint_losses = [loss for dataset, loss in joint_steps if dataset == name]
        single = [loss for _, loss in separate_steps[name]]
        steps = min(len(joint_losses), len(single))
        if not steps:
            raise DataError(
                f"dataset '{name}' took no step of the training with '{_get_partner(pair, name)}', so "
                "that there is nothing to compare; train for more steps, or with smaller batches"
            )
        joint.append(_compute_mean(joint_losses[:steps]))
        separate_losses.append(_compute_mean(single[:steps]))
    return _compute_mean(joint), _compute_mean(separate_losses)


def distance(joint: float, separate: float, formula: Distance) -> float:
    """Return the distance of two datasets, given their losses from joint and separate training.

    `paper` is the formula of BOOM as printed: 1 - LC / LA if training together helps (LC < LA), so that the
    strongest synergy has the largest distance below 1; otherwise LC / LA. `ratio` is LC / LA in both cases:
    below 1 for synergy and above 1 for conflict.
    """
    ratio = joint / separate
    return 1 - ratio if formula == "paper" and joint < separate else ratio


def _compute_mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _get_partner(pair: Pair, name: str) -> str:
    return pair[1] if pair[0] == name else pair[0]

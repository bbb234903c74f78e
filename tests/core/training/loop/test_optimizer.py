"""AdamW as a training uses it: what decays, how the rate goes, and what a resumed run continues with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emberge.training import FitOptions
from emberge.training.loop.optimizer import (
    build_adamw,
    compute_learning_rate_factor,
    read_optimizer_state,
    restore_optimizer,
)
from torch import nn

OPTIONS = FitOptions(learning_rate=0.1, weight_decay=0.5, adam_beta2=0.8, adam_epsilon=0.25)


def _parameters() -> dict[str, nn.Parameter]:
    draw = torch.Generator().manual_seed(1)
    shapes = {"matrix": (3, 2), "cube": (2, 2, 2), "bias": (3,), "temperature": ()}
    return {
        name: nn.Parameter(torch.randn(shape, generator=draw, dtype=torch.float64))
        for name, shape in shapes.items()
    }


def _stepped(
    parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, times: int
) -> None:
    for number in range(times):
        for place, parameter in enumerate(parameters.values()):
            parameter.grad = torch.full_like(parameter, 0.5 + number - place)
        optimizer.step()


def test_an_optimizer_that_is_restored_goes_on_as_if_it_had_not_stopped() -> None:
    whole, halves = _parameters(), _parameters()
    _stepped(whole, build_adamw(whole, OPTIONS), 4)

    first = build_adamw(halves, OPTIONS)
    _stepped(halves, first, 2)
    saved = {name: value.clone() for name, value in read_optimizer_state(first, halves).items()}
    assert set(saved) == {
        f"{key}.{name}" for key in ("step", "exp_avg", "exp_avg_sq") for name in halves
    }
    second = build_adamw(halves, OPTIONS)
    restore_optimizer(second, halves, saved)
    for number in (2, 3):
        for place, parameter in enumerate(halves.values()):
            parameter.grad = torch.full_like(parameter, 0.5 + number - place)
        second.step()
    for name in whole:
        assert torch.equal(whole[name], halves[name]), name


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ("linear", [0.5, 1.0, 1.0, 0.5, 0.125]),
        ("cosine", [0.5, 1.0, 1.0, 0.5, 0.0380602]),
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0]),
        ("warmup_stable_decay", [0.5, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_the_learning_rate_follows_its_schedule(schedule: Any, values: list[float]) -> None:
    found = [compute_learning_rate_factor(step, 10, 2, schedule) for step in (0, 1, 2, 6, 9)]
    assert found == pytest.approx(values)


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ("linear", [1 / 2, 1.0, 13 / 13, 12 / 13, 2 / 13, 1 / 13]),
        # The last tenth falls.
        ("warmup_stable_decay", [1 / 2, 1.0, 1.0, 1.0, 1.0, 1 / 2]),
    ],
)
def test_a_begun_step_of_warm_up_or_decay_is_a_whole_one(
    schedule: Any, values: list[float]
) -> None:
    """A tenth of 15 steps is 1.5: two steps of warm-up, and two of decay."""
    found = [
        compute_learning_rate_factor(step, 15, OPTIONS.count_warmup_steps(15), schedule)
        for step in (0, 1, 2, 3, 13, 14)
    ]
    assert found == pytest.approx(values)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"warmup_ratio": 0.1, "warmup_steps": 400}, "not both"),
        (
            {"schedule": "warmup_stable_decay", "warmup_steps": 95, "max_steps": 100},
            "the warm-up and the decay",
        ),
        ({"schedule": "warmup_stable_decay", "warmup_ratio": 0.95}, "the warm-up and the decay"),
        ({"epochs": 1, "max_steps": 5}, "not both"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], place: str) -> None:
    with pytest.raises(ValueError, match=place):
        FitOptions(**options)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "warmup_stable_decay", "constant"])
def test_a_training_of_one_step_learns(schedule: str) -> None:
    for warmup in (0, 1):
        assert compute_learning_rate_factor(0, 1, warmup, schedule) == 1.0  # type: ignore[arg-type]


def test_a_warm_up_is_a_number_of_steps_or_a_share_of_them() -> None:
    assert [FitOptions().count_warmup_steps(steps) for steps in (1, 15, 1000)] == [1, 2, 100]
    by_steps = FitOptions(warmup_steps=400)
    assert [by_steps.count_warmup_steps(steps) for steps in (100, 4000)] == [400, 400]
    found = [compute_learning_rate_factor(step, 4000, 400, "linear") for step in (0, 199, 399, 400)]
    assert found == [1 / 400, 0.5, 1.0, 1.0]
    # Longer than the training: the rate rises to its end.
    assert compute_learning_rate_factor(99, 100, 400, "linear") == 0.25

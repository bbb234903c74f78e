"""AdamW with its weight decay, and the schedule of the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from emberge.ranks import is_split, place_like
from emberge.training.fit_options import DECAY_SHARE, FitOptions, Schedule


def build_adamw(
    parameters: Mapping[str, nn.Parameter | Tensor],
    options: FitOptions,
    decays: Callable[[Tensor], bool] = lambda parameter: parameter.ndim > 1,
    *,
    fused: bool = True,
) -> torch.optim.AdamW:
    """Return AdamW over named parameters; parameters for which `decays` is True have weight decay.

    On a CPU, the rounding of a `fused` optimizer depends on the number of threads.
    """
    groups = [
        {
            "params": [
                p for p in parameters.values() if decays(p) == decaying and is_split(p) == split
            ],
            "weight_decay": options.weight_decay if decaying else 0.0,
        }
        for split in (False, True)  # one kernel cannot update both
        for decaying in (True, False)
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=options.learning_rate,
        betas=(0.9, options.adam_beta2),
        eps=options.adam_epsilon,
        fused=fused and all(p.device.type in ("cpu", "cuda") for p in parameters.values()),
    )


def compute_learning_rate_factor(
    step: int,
    steps: int,
    warmup: int,
    schedule: Schedule,
    *,
    from_zero: bool = False,
) -> float:
    """Return the factor of the learning rate at `step` (from 0), which rises for `warmup` steps.

    Only with `from_zero` it may be 0: at the first step of a warm-up, as in transformers.
    """
    if step < warmup:
        return (step + (not from_zero)) / warmup
    left = (steps - step) / max(1, steps - warmup)
    if schedule == "linear":
        return left
    if schedule == "cosine":
        return 0.5 * (1 - math.cos(math.pi * left))
    if schedule == "warmup_stable_decay":
        return min(1.0, (steps - step) / max(1, math.ceil(DECAY_SHARE * steps)))
    return 1.0


def read_optimizer_state(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter | Tensor]
) -> dict[str, Tensor]:
    """Return the optimizer's tensors by the parameters' names."""
    return {
        f"{key}.{name}": value
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter | Tensor],
    saved: Mapping[str, Tensor],
) -> None:
    """Load tensors of `read_optimizer_state` into an optimizer."""
    for name, parameter in parameters.items():
        for key in ("step", "exp_avg", "exp_avg_sq"):
            if f"{key}.{name}" in saved:
                value = saved[f"{key}.{name}"]
                # A fused optimizer has its step count on the parameter's device.
                has_parameter_shape = value.shape == parameter.shape and key != "step"
                optimizer.state[parameter][key] = (
                    place_like(parameter, value)
                    if has_parameter_shape
                    else value.to(parameter.device)
                )

"""Mean of a training's trajectory over its last steps, kept while it trains, in place of a decay.

d_k is the factor that a decay over the window's n models would give to the k-th update, with d_1 = 1 and
d_(n+1) = 0. The mean with the coefficients c_k = d_k - d_(k+1) contains update k with the sum of the
coefficients of all models from k on, which is d_k (WSM: Tian et al., 2025, arXiv:2507.17634). The sum of the
first k coefficients is 1 - d_(k+1), so that the mean so far needs no list of coefficients: it moves to each
model by c_k / (1 - d_(k+1)) of the distance.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from emberge.errors import EmbergeError
from emberge.ranks import local_part, put
from emberge.training.fit_options import Averaging, FitOptions
from emberge.training.loop.optimizer import learning_rate_factor

# Prefix, in a state, of the names of the mean parameters so far.
AVERAGE_PREFIX = "average."
_AVERAGED_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(eq=False)
class TrajectoryMean:
    """Running mean of parameters over the window at the end of a training of `steps` steps.

    Each rank averages its own part of parameters that ranks split. Without `averaging` there is no mean.

    Raises:
        EmbergeError: if the window does not fit the training, or parameters cannot be averaged.
    """

    averaging: Averaging | None
    steps: int
    parameters: Mapping[str, Tensor]
    project: Callable[[], None]
    """Function that moves the parameters to the nearest allowed values."""
    mean: dict[str, Tensor] = field(default_factory=dict)
    """Mean of each parameter so far, at least in float32; empty before the window."""

    def __post_init__(self) -> None:
        if self.averaging is None:
            return
        if problem := self.averaging.find_problem(self.steps):
            raise EmbergeError(problem)
        for name, parameter in self.parameters.items():
            if parameter.dtype not in _AVERAGED_TYPES:
                kind = str(parameter.dtype).removeprefix("torch.")
                raise EmbergeError(
                    f"average: parameter '{name}' has elements of type {kind}, which have no mean; load the "
                    "model in float32, or leave average out"
                )

    @torch.no_grad()
    def add(self, step: int) -> None:
        """Add the parameters after a step, counted from 1, if they are averaged."""
        number = None if self.averaging is None else find_point(self.averaging, step, self.steps)
        if number is None or self.averaging is None:
            return
        if not self.mean:
            self.mean = {
                name: p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
                for name, p in self.parameters.items()
            }
            return
        means = [local_part(mean) for mean in self.mean.values()]
        parts = [
            local_part(self.parameters[name]).to(mean.dtype) for name, mean in self.mean.items()
        ]
        points = self.averaging.count_points(self.steps)
        torch._foreach_lerp_(means, parts, share_of_point(self.averaging, number, points))

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the mean from the tensors of a state, in which its names have the prefix."""
        self.mean = {
            name: put(parameter, tensors[AVERAGE_PREFIX + name])
            for name, parameter in self.parameters.items()
            if AVERAGE_PREFIX + name in tensors
        }

    @property
    def state(self) -> dict[str, Tensor]:
        """The mean as tensors of a state."""
        return {AVERAGE_PREFIX + name: mean for name, mean in self.mean.items()}

    @torch.no_grad()
    def place(self) -> None:
        """Set the parameters to the mean, moved to the nearest allowed values, if the window has begun."""
        for name, mean in self.mean.items():
            local_part(self.parameters[name]).copy_(local_part(mean))
        if self.mean:
            self.project()

    @contextlib.contextmanager
    def placed(self) -> Iterator[None]:
        """Set the parameters to the mean while the block runs.

        The copy of the parameters needs no more memory than the gradients, which are freed between steps.
        """
        with torch.no_grad():
            raw = {name: local_part(self.parameters[name]).clone() for name in self.mean}
        self.place()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in raw.items():
                    local_part(self.parameters[name]).copy_(value)


def find_point(averaging: Averaging, step: int, steps: int) -> int | None:
    """Return the number, from 1, of the averaged model after `step`; None if that model is not averaged.

    Steps are counted from 1. Averaged models are counted back from the last step, which is always one.
    """
    points_left, between = divmod(steps - step, averaging.every)
    number = averaging.count_points(steps) - points_left
    return number if number >= 1 and not between else None


def share_of_point(averaging: Averaging, number: int, points: int) -> float:
    """Return the share of the distance by which the mean moves to the averaged model `number`, from 1.

    It is the model's coefficient over the sum of all coefficients until then: 1 / number for a plain mean,
    and always 1 for the first model.
    """
    if averaging.weights == "ema":
        return (1 - averaging.decay) / (1 - averaging.decay**number)
    factor, next_factor = (
        learning_rate_factor(step, points, 0, averaging.weights) for step in (number - 1, number)
    )
    return (factor - next_factor) / (1 - next_factor)


def measure_damping(options: FitOptions, steps: int) -> float:
    """Return the share of what the window's steps learn that the average removes, from 0 to 1.

    A step is taken to learn as much as its learning rate. A mean after a constant rate removes what a decay
    would; after a schedule that decays, it removes as much once more.
    """
    averaging = options.average
    if averaging is None:
        return 0.0
    points = averaging.count_points(steps)
    # Part of each update that is missing in the mean: that of all averaged models before it.
    missing = [1.0] * (points + 1)
    for number in range(points, 0, -1):
        missing[number - 1] = missing[number] * (1 - share_of_point(averaging, number, points))
    learned = removed = 0.0
    warmup = options.count_warmup_steps(steps)
    for step in range(max(0, steps - averaging.count_steps(steps)), steps):
        rate = learning_rate_factor(step, steps, warmup, options.schedule, options.decay_share)
        learned += rate
        removed += rate * missing[points - (steps - step - 1) // averaging.every - 1]
    return removed / learned

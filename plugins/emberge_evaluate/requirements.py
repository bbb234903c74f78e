"""Requirements of a recipe on its models' scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from emberge import (
    ModelRef,
    NonNegative,
    Positive,
    PositiveShare,
)

Demand = Literal["not_worse_than", "better_than", "forgetting", "keeps"]


@dataclass(frozen=True, kw_only=True)
class SizeLimits:
    """Largest size that a model may have; times are never required, as they differ by machine and day."""

    parameters: Positive | None = None
    """Number of all parameters, such as 25e6."""
    megabytes: Positive | None = None
    """Millions of bytes of the files of weights."""

    def limits(self) -> Iterator[tuple[str, float]]:
        """Yield (unit, limit) for each limit that is set."""
        for unit in ("parameters", "megabytes"):
            limit = getattr(self, unit)
            if limit is not None:
                yield unit, limit


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """Claim about one model; if it is false, the run ends with exit code 3.

    `tasks` is all, kinds (the mean over kinds of task), ind (in domain), ood (out of domain), a kind of task
    such as retrieval, or the name of a task. `margin` is in points: hundredths of a score, or of a loss
    (lower is better). The bound of a paired bootstrap at 95 % decides: the difference (model −
    other) must be at least −margin for `not_worse_than`, and more than margin for `better_than`. Models of
    one arm (several seeds) are judged together by their mean, and the bound includes the spread of the seeds.

    `forgetting: 0.5` compares the model, by default each scored model, with the step's `base`: on tasks
    outside all training domains the model must be less than that many points below the base, with this
    confidence.

    `keeps: 0.95` with `of` is for a smaller model: its score divided by that of `of`, a mean over the tasks,
    is at least this share, with this confidence. With fewer than 100 queries in these tasks the share cannot
    be told, and the claim is not met.

    `at_most: {parameters: 25e6, megabytes: 100}` is about the model's size, which is exact.
    """

    model: ModelRef | None = None
    not_worse_than: tuple[ModelRef, ...] = ()
    better_than: tuple[ModelRef, ...] = ()
    forgetting: NonNegative | None = None
    """Limit, in points, on the model's loss against the base on tasks outside all training domains."""
    keeps: PositiveShare | None = None
    """Share of the score of `of` that the model must have."""
    of: ModelRef | None = None
    at_most: SizeLimits | None = None
    tasks: str = "all"
    margin: NonNegative = 0.0

    def demands(self) -> Iterator[tuple[Demand, ModelRef]]:
        """Yield (demand, reference of the model to compare with) for each required comparison."""
        for other in self.not_worse_than:
            yield "not_worse_than", other
        for other in self.better_than:
            yield "better_than", other
        if self.keeps is not None and self.of is not None:
            yield "keeps", self.of

    def references(self) -> Iterator[ModelRef]:
        """Yield the reference of every model that the requirement names."""
        if self.model is not None:
            yield self.model
        yield from (other for _, other in self.demands())

    def problems(self) -> Iterator[str]:
        """Yield a problem for each contradiction between options."""
        compared = bool(self.not_worse_than or self.better_than or self.of)
        if not compared and self.forgetting is None and self.at_most is None:
            yield (
                "a requirement needs not_worse_than, better_than, forgetting, keeps with of, or at_most"
            )
        if self.margin and not (self.not_worse_than or self.better_than):
            yield "margin has no effect without not_worse_than or better_than"
        if self.at_most is not None and not any(self.at_most.limits()):
            yield "at_most: has no limit; give parameters or megabytes"
        if (compared or self.at_most is not None) and self.model is None:
            yield "a requirement needs the model that it is about; name it under 'model'"
        if (self.keeps is None) != (self.of is None):
            yield "a requirement on a share of a score needs both, keeps and of"
        if self.of is not None and self.of == self.model:
            yield f"of: {self.model} keeps all of its own score; name the larger model"

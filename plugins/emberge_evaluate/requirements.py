"""Requirements of a recipe on its models' scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from emberge import ModelRef

__all__ = ["Demand", "Requirement"]

Demand = Literal["not_worse_than", "better_than"]


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """Claim about one model that must be true, or the run ends with exit code 3.

    `tasks` is all, kinds (the mean over kinds of task), ind (in domain), ood (out of domain), a kind of task
    such as retrieval, or the name of a task. `margin` is in points, hundredths of a score or of a loss, of
    which less is better. By a paired bootstrap, with this `confidence` the difference (model − other) must be
    at least −margin for `not_worse_than`, and more than margin for `better_than`. Models of one arm (several
    seeds) are judged together, by their mean, with the spread of the seeds in the bound.
    """

    model: ModelRef
    not_worse_than: tuple[ModelRef, ...] = ()
    better_than: tuple[ModelRef, ...] = ()
    tasks: str = "all"
    margin: float = 0.0
    confidence: float = 0.95

    def demands(self) -> Iterator[tuple[Demand, ModelRef]]:
        """Yield each single comparison that is asked for."""
        for other in self.not_worse_than:
            yield "not_worse_than", other
        for other in self.better_than:
            yield "better_than", other

    def references(self) -> Iterator[ModelRef]:
        """Yield every model that it is about."""
        yield self.model
        yield from (other for _, other in self.demands())

    def problems(self) -> Iterator[str]:
        """Yield the options that contradict themselves."""
        if not (self.not_worse_than or self.better_than):
            yield "a requirement needs not_worse_than or better_than"
        if not 0.5 <= self.confidence < 1:
            yield f"a confidence of {self.confidence} is no share from 0.5 to below 1"
        if self.margin < 0:
            yield f"a margin of {self.margin} points is below 0"

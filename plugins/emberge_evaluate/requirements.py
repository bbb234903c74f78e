"""Requirements of a recipe on its models' scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from emberge import ModelRef

__all__ = ["Demand", "Requirement"]

Demand = Literal["not_worse_than", "better_than", "forgetting"]


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """Claim about one model that must be true, or the run ends with exit code 3.

    `tasks` is all, kinds (the mean over kinds of task), ind (in domain), ood (out of domain), a kind of task
    such as retrieval, or the name of a task. `margin` is in points, hundredths of a score or of a loss, of
    which less is better. By a paired bootstrap, with this `confidence` the difference (model − other) must be
    at least −margin for `not_worse_than`, and more than margin for `better_than`. Models of one arm (several
    seeds) are judged together, by their mean, with the spread of the seeds in the bound.

    `forgetting: 0.5` is about the step's `base`, and by default about all other models: on tasks that are
    nobody's training domain each must be less than so many points below it, with this confidence.
    """

    model: ModelRef | None = None
    not_worse_than: tuple[ModelRef, ...] = ()
    better_than: tuple[ModelRef, ...] = ()
    forgetting: float | None = None
    """Points that a model may lose on tasks elsewhere."""
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
        if self.model is not None:
            yield self.model
        yield from (other for _, other in self.demands())

    def problems(self) -> Iterator[str]:
        """Yield the options that contradict themselves."""
        compared = bool(self.not_worse_than or self.better_than)
        if not compared and self.forgetting is None:
            yield "a requirement needs not_worse_than, better_than or forgetting"
        if compared and self.model is None:
            yield "a requirement needs the model that it is about; name it under 'model'"
        if self.forgetting is not None and self.forgetting < 0:
            yield f"forgetting of {self.forgetting} points is below 0"
        if not 0.5 <= self.confidence < 1:
            yield f"a confidence of {self.confidence} is no share from 0.5 to below 1"
        if self.margin < 0:
            yield f"a margin of {self.margin} points is below 0"

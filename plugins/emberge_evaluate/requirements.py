"""Requirements of a recipe on its models' scores, and the sentences that say whether they are met."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from emberge import ModelRef, NonNegative
from emberge.wording import count_noun

from emberge_evaluate.scores import Verdict

Demand = Literal["not_worse_than", "better_than", "forgetting"]


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """Claim about one model; if it is false, the run ends with exit code 3.

    `tasks` is all, kinds (the mean over kinds of task), ind (in domain), ood (out of domain), a kind of task
    such as retrieval, or the name of a task. `margin` is in points: hundredths of a score, or of a loss
    (lower is better). The one-sided lower bound of a paired bootstrap at 95 % decides, which is above the
    lower end of the two-sided interval: the difference (model − other) must be at least −margin for
    `not_worse_than`, and more than margin for `better_than`. Models of one arm (several seeds) are judged
    together by their mean, and the bound includes the spread of the seeds.

    `forgetting: 0.5` compares the model, by default each scored model, with the step's `base`: on tasks
    outside all training domains the model must be less than that many points below the base, with this
    confidence.
    """

    model: ModelRef | None = None
    not_worse_than: tuple[ModelRef, ...] = ()
    """Models than which it is worse, with 95 % confidence, by at most `margin`."""
    better_than: tuple[ModelRef, ...] = ()
    """Models than which it is better, with 95 % confidence, by more than `margin`."""
    forgetting: NonNegative | None = None
    """Limit, in points, on the model's loss against the base on tasks outside all training domains."""
    tasks: str = "all"
    margin: NonNegative = 0.0

    def list_demands(self) -> Iterator[tuple[Demand, ModelRef]]:
        """Yield (demand, reference of the model to compare with) for each required comparison."""
        for other in self.not_worse_than:
            yield "not_worse_than", other
        for other in self.better_than:
            yield "better_than", other

    def list_references(self) -> Iterator[ModelRef]:
        """Yield the reference of every model that the requirement names."""
        if self.model is not None:
            yield self.model
        yield from (other for _, other in self.list_demands())

    def find_problems(self) -> Iterator[str]:
        """Yield a problem for each contradiction between options."""
        is_comparison = bool(self.not_worse_than or self.better_than)
        if not is_comparison and self.forgetting is None:
            yield "a requirement needs not_worse_than, better_than or forgetting"
        if self.margin and not is_comparison:
            yield "margin has no effect without not_worse_than or better_than"
        if is_comparison and self.model is None:
            yield "a requirement needs the model that it is about; name it under 'model'"


def describe_demand(verdict: Verdict, arm: str, other: str, *, less_is_better: bool) -> str:
    """Return the sentence on a difference that is "better_than" or "not_worse_than" another arm's score.

    A positive difference is a gain; `less_is_better` is True for losses.
    """
    margin, difference = verdict.margin, 100 * verdict.difference
    if verdict.demand == "better_than":
        by = f" by more than {count_noun(margin, 'point')}" if margin else ""
        claim, least, condition = f"must be better than {other}{by}", margin, "above"
        doubt = "is too uncertain" if margin else "may be chance"
        meets_by_value = difference > margin
    else:
        by = f"be at most {count_noun(margin, 'point')}" if margin else "not be"
        claim, least, condition = f"must {by} worse than {other}", -margin, "at least"
        doubt, meets_by_value = "is too uncertain", difference >= -margin
    unit = "points of gain" if less_is_better else "points"
    doubt = f" {doubt}" if meets_by_value and not verdict.met else ""
    bound = round(100 * verdict.lower_bound, 2) + 0.0  # no -0.00
    return (
        f"{arm} {claim} on {verdict.tasks}: {difference:+.2f} {unit}{doubt} (one-sided "
        f"lower bound {bound:+.2f} at 95%, must be {condition} "
        f"{f'{least:+g}' if least else '0'})"
    )


def describe_forgetting(verdict: Verdict, arm: str, base: str) -> str:
    """Return the sentence on the loss against the base that is allowed; a positive difference is a gain."""
    difference, bound = 100 * verdict.difference, 100 * verdict.lower_bound
    tasks = "out of domain" if verdict.tasks == "out" else verdict.tasks
    claim = f"{arm} must lose at most {count_noun(verdict.margin, 'point')} against {base} on tasks {tasks}"
    is_unsure = bound < -verdict.margin <= difference
    worst = (
        f"but may have lost {-bound:.2f}" if is_unsure else f"at worst it {_describe_change(bound)}"
    )
    return f"{claim}: it {_describe_change(difference)} points, {worst} (one-sided, at 95%)"


def _describe_change(points: float) -> str:
    return f"{'lost' if points < 0 else 'gained'} {abs(points):.2f}"

"""The outcome of an adaptation: gain, forgetting, the model, and what to do next, on one screen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emberge.wording import count_noun

from emberge_adapt.adapt_plan import FEWEST_TEST_QUERIES, AdaptPlan
from emberge_adapt.recipe_text import MODEL, REPORT, SCORES

if TYPE_CHECKING:
    from emberge.evaluating import Comparison, Scores

IN_DOMAIN = "in"
# Fewer pairs than this are few to train on.
_FEW_PAIRS = 1000
_WIDTH = 12


@dataclass(frozen=True)
class AdaptOutcome:
    """Scores of base, model and members on the test and elsewhere; the base is first, the model second."""

    out: Path
    scores: Scores
    plan: AdaptPlan

    @property
    def base(self) -> str:
        """Name of the base in the scores."""
        return self.scores.models[0]

    @property
    def model(self) -> str:
        """Name of the merged model in the scores."""
        return self.scores.models[1]

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the trainings that were merged."""
        return self.scores.models[2:]

    @property
    def model_folder(self) -> Path:
        """The folder of the merged model."""
        return self.out / MODEL

    @property
    def gain(self) -> Comparison | None:
        """Comparison of the model with the base on the test."""
        return self.scores.difference(self.model, IN_DOMAIN)

    @property
    def has_gain(self) -> bool:
        """True if the model is better than the base on the test by more than chance."""
        return self.gain is not None and self.gain.verdict == "better"

    @property
    def unmet(self) -> tuple[str, ...]:
        """Requirements on gain and forgetting that are not met, in words."""
        return tuple(verdict.text for verdict in self.scores.requirements if not verdict.met)

    def lines(self) -> Iterator[str]:
        """Yield the outcome as lines for the terminal."""
        yield ""
        for title, text in self._list_rows():
            yield f"{title:<{_WIDTH}}{text}".rstrip()

    def _list_rows(self) -> Iterator[tuple[str, str]]:
        yield "gain", self._describe_gain()
        yield "single", self._describe_best_member()
        yield "elsewhere", self._describe_forgetting()
        yield "model", str(self.model_folder)
        yield "tables", str(self.out / SCORES / "scores.md")
        yield "report", str(self.out / REPORT / "report.html")
        yield from self._advise()

    def _advise(self) -> Iterator[tuple[str, str]]:
        """Yield what to do next, and what would help if a requirement is not met."""
        demands = {one.demand for one in self.scores.requirements if not one.met}
        if "forgetting" in demands:
            yield (
                "forgotten",
                "in the recipe of --print merge with `keep: 0.7`, or train fewer epochs",
            )
        if self.has_gain:
            yield "next", f"emberge publish --dry-run {self.model_folder} OWNER/NAME"
            return
        yield "no gain", "the model is not better than the base by more than chance; what may help:"
        units, noun = self._count_test_units()
        if units < 2 * FEWEST_TEST_QUERIES:
            yield (
                "",
                f"more test queries: {count_noun(units, noun)} tell only large gains from chance",
            )
        if self.plan.train_rows < _FEW_PAIRS:
            yield "", f"more pairs: {self.plan.train_rows:,} are few to train on"
        if self.plan.effort != "thorough":
            yield "", "--effort thorough"
        yield "", "another base: --model"

    def _count_test_units(self) -> tuple[int, str]:
        """Return (number, noun) of the test units in domain."""
        tasks = [task for task in self.scores.tasks if task.domain == IN_DOMAIN]
        nouns = {task.unit for task in tasks if task.unit} or {"example"}
        return sum(task.units or 0 for task in tasks), min(nouns)

    def _describe_gain(self) -> str:
        base, model = (self.scores.value(name, IN_DOMAIN) for name in (self.base, self.model))
        if self.gain is None or base is None or model is None:
            return "unknown: the test has no score"
        return (
            f"{format_difference(self.gain)} points on {count_noun(*self._count_test_units())}: "
            f"base {100 * base:.1f}, model {100 * model:.1f}"
        )

    def _describe_best_member(self) -> str:
        known = {name: self.scores.value(name, IN_DOMAIN) for name in self.members}
        values = {name: value for name, value in known.items() if value is not None}
        if not values:
            return "unknown"
        best = max(values, key=lambda name: values[name])
        comparison = self.scores.difference(self.model, IN_DOMAIN, best)
        difference = f", the model {format_difference(comparison)}" if comparison else ""
        return f"{best} alone {100 * values[best]:.1f}{difference}"

    def _describe_forgetting(self) -> str:
        for one in self.scores.forgetting:
            if one.reference == self.model:
                sets = sum(task.domain == "elsewhere" for task in self.scores.tasks)
                gain = format_difference(one, sign=-1)
                return f"{gain} points on {count_noun(sets, 'set')} of other domains"
        return "what the model forgot is unknown: no set of another domain was scored"


def format_difference(comparison: Comparison, sign: int = 1) -> str:
    """Return a difference, or its opposite, in points with its interval: `+1.2 [+0.3, +2.1]`."""
    text = f"{100 * sign * comparison.difference:+.1f}"
    if comparison.interval is None:
        return text
    low, high = sorted(100 * sign * end for end in comparison.interval)
    return f"{text} [{low:+.1f}, {high:+.1f}]"

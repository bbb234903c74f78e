"""The outcome of an adaptation: gain, forgetting, the model, and what to do next, on one screen."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import Artifact, StepResult
from emberge.contracts import DataDetails, MergeDetails
from emberge.wording import count_noun

from emberge_adapt.adapt_plan import FEWEST_TEST_QUERIES, AdaptPlan
from emberge_adapt.recipe_text import CLEAN, FOUND, MODEL, REPORT, SCORES

if TYPE_CHECKING:
    from emberge_evaluate import Comparison, Scores
    from sentence_transformers import SentenceTransformer

RECIPE_FILE = "recipe.yaml"
_IN_DOMAIN = "in"
# Fewer pairs than this are few to train on.
_FEW_PAIRS = 1000
# With a higher score of the base, there is little to gain.
_EASY_SCORE = 0.95
# With a lower score of the base, queries may stand beside the answers of others.
_STRANGE_SCORE = 0.2
_TITLE_WIDTH = 12


@dataclass(frozen=True)
class AdaptOutcome(os.PathLike[str]):
    """The model in `out`, and the scores of base, model and members (in this order) on test and elsewhere.

    It may stand for the model's folder. As text it is the screen that the command ends with.
    """

    out: Path
    evaluation: Scores
    plan: AdaptPlan
    artifacts: Mapping[str, Artifact]
    """Records of the cleaned rows, the merge and, if its weights were searched, the search, by step."""

    def __fspath__(self) -> str:
        """Return the path of the model's folder as text."""
        return self.model

    def __str__(self) -> str:
        """Return the gain, what was forgotten, size and weights, as lines."""
        return "\n".join(self.format_lines()).strip()

    @property
    def model(self) -> str:
        """The folder of the model as text, as recipes and `SentenceTransformer` take it."""
        return str(self.out / MODEL)

    @property
    def scores(self) -> list[dict[str, Any]]:
        """The scores of base, model and trainings, a row for each model and task."""
        return StepResult(SCORES, self.out / SCORES).scores

    @property
    def report(self) -> Path:
        """The HTML page of the report."""
        return self.out / REPORT / "report.html"

    @property
    def recipe(self) -> Path:
        """The file of the recipe that was run; its relative paths start at the current folder of the run."""
        return self.out / RECIPE_FILE

    @property
    def gain(self) -> Comparison | None:
        """Comparison of the model with the base on the test."""
        return self.evaluation.find_difference(self.evaluation.models[1], _IN_DOMAIN)

    @property
    def has_gain(self) -> bool:
        """True if the requirement is met that the model is better than the base on the test."""
        return any(one.met for one in self.evaluation.requirements if one.demand == "better_than")

    @property
    def unmet(self) -> tuple[str, ...]:
        """Requirements on gain and forgetting that are not met, in words."""
        return tuple(verdict.text for verdict in self.evaluation.requirements if not verdict.met)

    def load(self, **options: Any) -> SentenceTransformer:
        """Load the model without network and remote code; `options` are others of `SentenceTransformer`."""
        return StepResult(MODEL, self.out / MODEL).load(**options)

    def format_lines(self) -> Iterator[str]:
        """Yield the outcome as lines for the terminal."""
        yield ""
        for title, text in self._list_rows():
            yield f"{title:<{_TITLE_WIDTH}}{text}".rstrip()

    def _list_rows(self) -> Iterator[tuple[str, str]]:
        yield "gain", self._describe_gain()
        names = [task.name for task in self.evaluation.tasks if task.domain == _IN_DOMAIN]
        for name in names if len(names) > 1 else ():
            if one := self.evaluation.find_difference(self.evaluation.models[1], name):
                yield "", f"{name} {format_difference(one)}"
        yield "single", self._describe_best_member()
        yield "elsewhere", self._describe_forgetting()
        yield "base share", self._explain_base_share()
        yield "left out", self._describe_left_out()
        yield "model", self.model
        yield "tables", str(self.out / SCORES / "scores.md")
        yield "report", str(self.report)
        yield from self._advise()

    def _advise(self) -> Iterator[tuple[str, str]]:
        """Yield what to do next, and what would help if a requirement is not met."""
        if any(one.demand == "forgetting" for one in self.evaluation.requirements if not one.met):
            members = ", ".join(f"${step}" for step in self.plan.member_steps)
            merge = f"{{models: [{members}], base: *base, keep: 0.7}}"
            remedy = f"print the recipe by --print and write merge: {merge}, or fewer epochs"
            yield "forgotten", remedy
        if self.has_gain:
            yield "next", f"emberge publish --dry-run {self.model} OWNER/NAME"
            return
        yield "no gain", "the model is not better than the base by more than chance; what may help:"
        base = self.evaluation.find_value(self.evaluation.models[0], _IN_DOMAIN) or 0
        if base >= _EASY_SCORE:
            yield (
                "",
                f"a harder test (--test, --documents): the base already has {100 * base:.0f} of 100",
            )
        if 0 < base < _STRANGE_SCORE and not self.plan.learns_scores:
            yield (
                "",
                "the rows: the base finds few answers; see that each query has its own beside it",
            )
        units, noun = self._count_test_units()
        if units < 2 * FEWEST_TEST_QUERIES:
            shown = count_noun(units, noun)
            yield "", f"more test queries: {shown} tell only large gains from chance"
        if self.plan.train_rows < _FEW_PAIRS:
            yield "", f"more pairs: {self.plan.train_rows:,} are few to train on"
        if self.plan.effort != "thorough":
            yield "", "--effort thorough"
        yield "", "another base: --model"

    def _count_test_units(self) -> tuple[int, str]:
        """Return (number, noun) of the test units in domain."""
        tasks = [task for task in self.evaluation.tasks if task.domain == _IN_DOMAIN]
        nouns = {task.unit for task in tasks if task.unit} or {"example"}
        return sum(task.units or 0 for task in tasks), min(nouns)

    def _describe_gain(self) -> str:
        base, model = (
            self.evaluation.find_value(name, _IN_DOMAIN) for name in self.evaluation.models[:2]
        )
        if self.gain is None or base is None or model is None:
            return "unknown: the test has no score"
        tasks = [task for task in self.evaluation.tasks if task.domain == _IN_DOMAIN]
        test = f"{count_noun(*self._count_test_units())} of the test"
        if len(tasks) == 1 and tasks[0].note:
            test = f"the test's {tasks[0].note}"
        metric = " and ".join(sorted({task.metric for task in tasks}))
        metric = metric.replace("ndcg", "nDCG").replace("_at_", "@")
        verdict = self.evaluation.conclude(self.gain)
        return (
            f"{format_difference(self.gain)} points on {test} ({metric} × 100, 95 %): "
            f"base {100 * base:.1f}, model {100 * model:.1f}"
            f"{f'; {verdict}' if verdict.startswith('barely') else ''}"
        )

    def _describe_best_member(self) -> str:
        _, model, *members = self.evaluation.models
        known = {name: self.evaluation.find_value(name, _IN_DOMAIN) for name in members}
        values = {name: value for name, value in known.items() if value is not None}
        if not values:
            return "unknown"
        best = max(values, key=lambda name: values[name])
        comparison = self.evaluation.find_difference(model, _IN_DOMAIN, best)
        difference = f", the model {format_difference(comparison)}" if comparison else ""
        alone = f"{best} alone {100 * values[best]:.1f}"
        return f"{alone}{difference}; its model without the merge: {self.out / best}"

    def _explain_base_share(self) -> str:
        """Return the base's share in the merge, and how it was chosen, in one sentence."""
        rows = count_noun(self.plan.dev_rows, "dev row")
        if FOUND not in self.artifacts:
            return f"50% of the merge, as {rows} cannot tell more"
        details, found = self.artifacts[MODEL].details, self.artifacts[FOUND].details
        assert isinstance(details, MergeDetails)
        assert isinstance(found, Mapping)
        *_, share = details.weights.values()
        *_, base = found["alone"].values()
        if found["gain"]["low"] > 0:
            reason = f"chosen weights gain {100 * found['gain']['difference']:+.1f} points over equal weights"
        elif round(share, 2) == self.plan.base_share:
            reason = "no other weights are clearly better"
        elif base >= _EASY_SCORE:
            reason = f"the base alone has {100 * base:.0f} of 100, so no gain can be seen there"
        else:
            reason = "the trainings are not clearly better than the base"
        return f"{share:.0%} of the merge; on {rows}, {reason}"

    def _describe_left_out(self) -> str:
        """Return how many rows decontamination took, and why."""
        details = self.artifacts[CLEAN].details
        assert isinstance(details, DataDetails)
        counts = details.changes.values()
        dropped, rows = sum(one.dropped for one in counts), sum(one.rows for one in counts)
        left_out = f"{dropped:,} of {count_noun(rows, 'row')} to train on"
        return f"{left_out}: those that repeat, or nearly repeat, a query of the test or of the dev rows"

    def _describe_forgetting(self) -> str:
        for one in self.evaluation.forgetting:
            if one.reference == self.evaluation.models[1]:
                sets = sum(task.domain == "elsewhere" for task in self.evaluation.tasks)
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

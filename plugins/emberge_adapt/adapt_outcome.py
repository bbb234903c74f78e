"""The outcome of an adaptation: gain, forgetting, size, and what to do next, on one screen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emberge.evaluating import read_scores
from emberge.merging import FoundWeights
from emberge.model_folder import Checkpoint, count_parameters
from emberge.wording import count_noun, human_size, join_some

from emberge_adapt.adapt_plan import FEWEST_TEST_QUERIES, AdaptPlan
from emberge_adapt.data_facts import DataFacts
from emberge_adapt.recipe_text import (
    FORGETTING_LIMIT,
    KEPT_SHARE,
    MODEL,
    REPORT,
    SCORES,
    SMALL,
)

if TYPE_CHECKING:
    from emberge.evaluating import Comparison, Scores, Verdict

IN_DOMAIN = "in"
METRIC_NAMES = {
    "ndcg_at_10": "nDCG@10",
    "cosine_spearman": "Spearman of the cosine",
    "map": "MAP",
    "accuracy": "accuracy",
}
# A base at or above this score leaves little to gain; fewer pairs than this are few to train on.
_HIGH_SCORE, _FEW_PAIRS = 0.95, 1000
_WIDTH = 12


@dataclass(frozen=True)
class AdaptOutcome:
    """Scores of base, model and members on the test and elsewhere; the base is first, the model second.

    If there is a student, it is the last.
    """

    out: Path
    scores: Scores
    plan: AdaptPlan
    facts: DataFacts

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
        return self.scores.models[2:] if self.plan.small is None else self.scores.models[2:-1]

    @property
    def small(self) -> str:
        """Name of the student in the scores."""
        return self.scores.models[-1]

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
        yield self._line("gain", self._describe_gain())
        yield self._line("single", self._describe_best_member())
        yield self._line("elsewhere", self._describe_forgetting())
        if weights := self._describe_weights():
            yield self._line("weights", weights)
        yield self._line("size", describe_weights_of(self.model_folder))
        yield self._line("model", str(self.model_folder))
        yield from self._describe_student()
        yield self._line("load it", "from sentence_transformers import SentenceTransformer")
        yield self._line("", f'model = SentenceTransformer("{self.model_folder}")')
        yield self._line("tables", str(self.out / SCORES / "scores.md"))
        yield self._line("report", str(self.out / REPORT / "report.html"))
        yield from self._advise_on_student()
        if any(not one.met and one.demand == "forgetting" for one in self.scores.requirements):
            yield self._line(
                "forgotten",
                f"perhaps more than {FORGETTING_LIMIT} points elsewhere: in the recipe of --print merge with "
                "`keep: 0.7`, or train fewer epochs",
            )
        if self.has_gain:
            yield self._line("next", f"emberge publish --dry-run {self.model_folder} OWNER/NAME")
        else:
            yield self._line("no gain", "the model is not better than the base by more than chance")
            for advice in self.advise():
                yield self._line("", advice)

    @staticmethod
    def _line(title: str, text: str) -> str:
        return f"{title:<{_WIDTH}}{text}".rstrip()

    @property
    def _test_units(self) -> tuple[int, str, str]:
        """Number of test units, their noun, and the metric of the tests in domain."""
        tasks = [task for task in self.scores.tasks if task.domain == IN_DOMAIN]
        units = sum(task.units or 0 for task in tasks)
        nouns = {task.unit for task in tasks if task.unit} or {"example"}
        metrics = {METRIC_NAMES.get(task.metric, task.metric) for task in tasks}
        return units, sorted(nouns)[0], ", ".join(sorted(metrics))

    def _describe_gain(self) -> str:
        units, noun, metric = self._test_units
        base, model = (self.scores.value(name, IN_DOMAIN) for name in (self.base, self.model))
        if self.gain is None or base is None or model is None:
            return "unknown: the test has no score"
        return (
            f"{format_difference(self.gain)} points of {metric} on {count_noun(units, noun)}: "
            f"base {100 * base:.1f}, model {100 * model:.1f}"
        )

    def _describe_best_member(self) -> str:
        values = {
            name: value
            for name in self.members
            if (value := self.scores.value(name, IN_DOMAIN)) is not None
        }
        if not values:
            return "unknown"
        best = max(values, key=lambda name: values[name])
        comparison = self.scores.difference(self.model, IN_DOMAIN, best)
        difference = f", the model {format_difference(comparison)}" if comparison else ""
        return f"{best} alone {100 * values[best]:.1f}{difference}"

    def _describe_forgetting(self) -> str:
        forgotten = self.scores.forgotten(self.model)
        count = sum(task.domain == "elsewhere" for task in self.scores.tasks)
        if forgotten is None:
            return "what the model forgot is unknown: no set of another domain was scored"
        lost = 100 * forgotten.mean
        interval = (
            f" [{-100 * forgotten.high:+.1f}, {-100 * forgotten.low:+.1f}]"
            if forgotten.low is not None and forgotten.high is not None
            else ""
        )
        return f"{-lost:+.1f}{interval} points on {count_noun(count, 'set')} of other domains"

    def _describe_weights(self) -> str:
        if not self.plan.finds_weights:
            return "half the base"
        found = FoundWeights.read(self.out / "found")
        total = sum(found.weights.values()) or 1.0
        parts = [
            f"{found.names.get(key, key)} {weight / total:.2f}"
            for key, weight in found.weights.items()
        ]
        clear = "" if found.facts.get("clear") else " (nothing else is clearly better)"
        return f"{join_some(parts, 6)}{clear}"

    # ── student ─────────────────────────────────────────────────────────────────────────────────

    @property
    def _share_kept(self) -> Verdict:
        """The verdict on the share of the model's score that the student keeps on the test."""
        return next(one for one in self.scores.requirements if one.demand == "keeps")

    def _describe_student(self) -> Iterator[str]:
        small, folder = self.plan.small, self.out / SMALL
        if small is None:
            return
        yield self._line("small", f"{small.summary}: {describe_weights_of(folder)}")
        yield self._line("", self._describe_share())
        yield self._line("", str(folder))

    def _describe_share(self) -> str:
        kept, metric = self._share_kept, self._test_units[2]
        text = f"keeps {kept.difference:.1%} of the model's {metric}"
        if kept.lower_bound > 0:
            text += f", at least {kept.lower_bound:.1%} (with 95% confidence)"
        comparison = self.scores.difference(self.small, IN_DOMAIN, self.model)
        if comparison is not None:
            text += f": {format_difference(comparison)} points"
        forgotten = self.scores.forgotten(self.small)
        if forgotten is not None:
            text += f"; {-100 * forgotten.mean:+.1f} elsewhere, against the base"
        return text

    def _advise_on_student(self) -> Iterator[str]:
        """Yield why the claim on the student is not met and what would help; nothing if it is met."""
        small = self.plan.small
        if small is None or self._share_kept.met:
            return
        units, noun, _ = self._test_units
        if units < FEWEST_TEST_QUERIES:
            yield self._line(
                "small",
                f"{count_noun(units, noun)} cannot show that it keeps {KEPT_SHARE:.0%}: test with "
                f"{FEWEST_TEST_QUERIES} or more (--test)",
            )
            return
        larger = f"{small.larger}, or " if small.larger else ""
        yield self._line(
            "too small",
            f"it may keep less than {KEPT_SHARE:.0%}: {larger}more texts to learn from (--documents)",
        )

    def advise(self) -> Iterator[str]:
        """Yield what would help if there is no gain: more pairs, longer texts, another base."""
        units, noun, _ = self._test_units
        base = self.scores.value(self.base, IN_DOMAIN)
        trained = self.plan.train_rows
        if base is not None and base >= _HIGH_SCORE:
            yield (
                f"the base already scores {100 * base:.1f}: a harder test, with more --documents, may "
                "tell more"
            )
        if units < 2 * FEWEST_TEST_QUERIES:
            yield f"more test queries: {count_noun(units, noun)} tell only large gains from chance"
        if trained < _FEW_PAIRS:
            yield f"more pairs: {trained:,} are few to train on"
        longest = max(self.facts.query_tokens.most, self.facts.document_tokens.most)
        if longest > self.plan.training.max_length:
            yield (
                f"longer texts: many have more than {self.plan.training.max_length} tokens; cut them into "
                "passages, or raise max_length in the recipe of --print"
            )
        if self.plan.effort != "thorough":
            yield "--effort thorough"
        yield "another base: --model"


def describe_weights_of(folder: Path) -> str:
    """Return the number of a model's parameters and the size of its weights: `22.7 M parameters, 90.9 MB`."""
    parameters = count_parameters(Checkpoint(folder)).total
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return f"{parameters / 1e6:,.1f} M parameters, {human_size(weights)}"


def format_difference(comparison: Comparison) -> str:
    """Return a difference in points with its interval: `+1.2 [+0.3, +2.1]`."""
    text = f"{100 * comparison.difference:+.1f}"
    if comparison.interval is None:
        return text
    low, high = comparison.interval
    return f"{text} [{100 * low:+.1f}, {100 * high:+.1f}]"


def read_outcome(out: Path, plan: AdaptPlan, facts: DataFacts) -> AdaptOutcome:
    """Return the outcome of a finished run.

    Raises:
        DataError: if the run left no scores.
    """
    return AdaptOutcome(out, read_scores(out / SCORES), plan, facts)

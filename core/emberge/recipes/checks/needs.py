"""The sum of a check: what a recipe needs in models, data, disk and access."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from emberge.recipes.checks.preflight import CheckReport
from emberge.recipes.recipe import Recipe
from emberge.wording import count_noun, human_size

_BILLION = 10**9


@dataclass(frozen=True)
class RecipeNeeds:
    """The needs of a checked recipe, as far as headers and configs show them."""

    recipe: Recipe
    report: CheckReport

    @property
    def lines(self) -> list[str]:
        """The needs as lines of label and text."""
        unseen = self.report.unseen_counts
        entries = [
            ("models", self._describe_models()),
            ("data", self._describe_data()),
            ("disk", self._describe_disk()),
            ("access", self._describe_access()),
            ("not seen", [f"{unseen} (--long lists them)" if unseen else "nothing"]),
        ]
        lines = [f"in sum, {count_noun(len(self.recipe.steps), 'step')}:"]
        for label, texts in entries:
            for number, text in enumerate(texts):
                lines.append(f"  {'' if number else label:<10}  {text}")
        return lines

    # ── parts ───────────────────────────────────────────────────────────────────────────────────

    def _describe_models(self) -> Iterator[str]:
        outside = self.report.names.get("model", frozenset())
        made = sum(type(step.step).produces == "model" for step in self.recipe.steps)
        yield f"{len(outside)} from outside, {made} made by steps"

    def _describe_data(self) -> Iterator[str]:
        sets, tasks = (len(self.report.names.get(noun, ())) for noun in ("set", "task"))
        made = sum(type(step.step).produces == "data" for step in self.recipe.steps)
        outside = f"{count_noun(sets, 'set')} of rows and {count_noun(tasks, 'task')} to score on"
        yield f"{outside} from outside, and data of {count_noun(made, 'step')}"

    def _describe_disk(self) -> Iterator[str]:
        known = [one.size * one.parameters for one in self.report.disk if one.parameters]
        left = Counter[str]()
        for one in self.report.disk:
            if not one.parameters:
                left[one.source] += one.size
        if known or not left:
            yield f"{human_size(sum(known))} for the models of {count_noun(len(known), 'step')}"
        yield from (
            f"{human_size(size * _BILLION)} for each billion parameters of {source}"
            for source, size in left.items()
        )
        yield "downloads, data and saved states are not counted"

    def _describe_access(self) -> Iterator[str]:
        closed = [problem.message for problem in self.report.problems if problem.about == "access"]
        yield from dict.fromkeys(closed)
        if self.recipe.uploads:
            yield f"a token that may write to {', '.join(self.recipe.uploads)}"
        if not closed:
            seen = ", of what could be looked at" if self.report.of("unseen") else ""
            yield f"nothing is gated or needs a token{seen}"

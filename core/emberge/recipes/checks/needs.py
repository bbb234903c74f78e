"""The sum of a check: what a recipe needs in models, data, tokens, disk, GPU memory and GPU hours."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from emberge.errors import RecipeError, suggest
from emberge.recipes.checks.preflight import CheckReport, StepWork
from emberge.recipes.recipe import Recipe
from emberge.wording import count_noun, human_size, join_some

# Operations in a second at most, in bfloat16 without sparsity (float16 for T4 and V100), by the makers' data
# sheets.
_PEAKS = {
    "A10": 125e12,
    "A100": 312e12,
    "B200": 2250e12,
    "H100": 989e12,
    "H200": 989e12,
    "L4": 121e12,
    "L40S": 362e12,
    "RTX4090": 165e12,
    "T4": 65e12,
    "V100": 125e12,
}
_BILLION = 10**9
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU for estimates: its name, its peak in operations a second, and the share of it that is used."""

    name: str = "H100"
    peak: float = _PEAKS["H100"]
    share: float = 0.3

    @classmethod
    def parse(cls, text: str, share: float) -> Gpu:
        """Return the GPU of a name, or of a number of teraflops in a second.

        Raises:
            RecipeError: for a name that is not known, or a number that is not above 0.
        """
        peak = _PEAKS.get(text.upper().replace(" ", ""))
        if peak is not None:
            return cls(text.upper(), peak, share)
        try:
            teraflops = float(text)
        except ValueError:
            hint = suggest(text.upper(), _PEAKS) or f"; known: {', '.join(_PEAKS)}"
            raise RecipeError(
                f"--gpu {text}: there is no such GPU here{hint}; a number means teraflops a second"
            ) from None
        if not 0 < teraflops < 1e9:
            raise RecipeError(f"--gpu {text}: give teraflops a second, such as 312")
        return cls(f"GPU of {teraflops:g} TFLOP/s", teraflops * 1e12, share)

    def hours(self, flops: float) -> float:
        """Return the hours that it takes for so many operations."""
        return flops / (self.peak * self.share) / 3600

    @property
    def words(self) -> str:
        """The GPU and what is taken of it, in words."""
        return f"{self.name}, at {self.share:.0%} of its {self.peak / 1e12:,.0f} TFLOP/s"


@dataclass(frozen=True)
class RecipeNeeds:
    """The needs of a checked recipe, estimated.

    Only what is known is counted: sizes of models from headers and configs, tokens from the recipe's lengths,
    rows that are stated or counted, and first rows.
    """

    recipe: Recipe
    report: CheckReport
    gpu: Gpu

    @property
    def lines(self) -> list[str]:
        """The needs as lines of label and text."""
        unseen = self.report.unseen_counts
        entries = [
            ("models", self._describe_models()),
            ("data", self._describe_data()),
            ("tokens", self._describe_tokens()),
            ("disk", self._describe_disk()),
            ("GPU memory", self._describe_memory()),
            ("GPU hours", self._describe_hours()),
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
        unknown = dict.fromkeys(one.source for one in self.report.work if one.parameters is None)
        if unknown:
            yield f"of unknown size: {join_some(unknown, _SHOWN)}"

    def _describe_data(self) -> Iterator[str]:
        sets, tasks = (len(self.report.names.get(noun, ())) for noun in ("set", "task"))
        made = sum(type(step.step).produces == "data" for step in self.recipe.steps)
        outside = f"{count_noun(sets, 'set')} of rows and {count_noun(tasks, 'task')} to score on"
        yield f"{outside} from outside, and data of {count_noun(made, 'step')}"

    def _describe_tokens(self) -> Iterator[str]:
        tokens = Counter[str]()
        unknown = Counter[tuple[str, str]]()
        for one in self._computing:
            tokens[one.work.kind] += (one.work.tokens or 0) * one.work.models
            if one.work.tokens is None:
                unknown[one.work.kind, one.work.unknown] += 1
        known = [f"{_count_words(count)} for {kind}" for kind, count in tokens.items() if count]
        if known:
            yield f"at most about {', '.join(known)}"
        for (kind, reason), count in unknown.items():
            yield f"not known of {count_noun(count, kind)}: {reason}"
        if self.report.uncounted:
            kinds = [f"{kind} ({count})" for kind, count in self.report.uncounted.items()]
            yield f"not counted: {join_some(kinds, _SHOWN)}"
        if not self._computing and not self.report.uncounted:
            yield "none: no step runs a model"

    def _describe_disk(self) -> Iterator[str]:
        writing = [one for one in self.report.work if one.work.disk]
        known = [
            one.work.disk * one.parameters.total for one in writing if one.parameters is not None
        ]
        left = Counter[str]()
        for one in writing:
            if one.parameters is None:
                left[one.source] += one.work.disk
        if known or not left:
            yield f"{human_size(sum(known))} for the models of {count_noun(len(known), 'step')}"
        yield from (
            f"{human_size(size * _BILLION)} for each billion parameters of {source}"
            for source, size in left.items()
        )
        yield "downloads, data and saved states are not counted"

    def _describe_memory(self) -> Iterator[str]:
        sized = [
            (one.work.memory * one.parameters.total, one.step)
            for one in self._computing
            if one.parameters is not None
        ]
        unsized: dict[str, int] = {}
        for one in self._unsized:
            unsized[one.source] = max(one.work.memory, unsized.get(one.source, 0))
        if sized:
            most, step = max(sized, key=lambda pair: pair[0])
            yield f"{human_size(most)} in step {step}"
        yield from (
            f"{human_size(size * _BILLION)} for each billion parameters of {source}"
            for source, size in unsized.items()
        )
        if sized or unsized:
            yield "weights, gradients and optimizer; activations of a chunk come on top"
        else:
            yield "none: no step runs a model"

    def _describe_hours(self) -> Iterator[str]:
        hours: defaultdict[str, float] = defaultdict(float)
        left: defaultdict[str, float] = defaultdict(float)
        for one in self._computing:
            size = one.parameters.computed if one.parameters is not None else _BILLION
            flops = float(one.work.flops) * (one.work.tokens or 0) * one.work.models * size
            into, key = (left, one.source) if one.parameters is None else (hours, one.work.kind)
            into[key] += self.gpu.hours(flops)
        known = {kind: value for kind, value in hours.items() if value}
        if known:
            each = ", ".join(f"{_round_hours(value)} {kind}" for kind, value in known.items())
            yield f"{_round_hours(sum(known.values()))}: {each}"
        for source, value in left.items():
            if value:
                yield f"{_round_hours(value)} for each billion parameters of {source}"
        if any(one.work.tokens is None for one in self._computing) or self.report.uncounted:
            known_or_left = any(known.values()) or any(left.values())
            yield f"{'more' if known_or_left else 'not known'}, for tokens that are not known or not counted"
        if self._computing or self.report.uncounted:
            yield f"of one {self.gpu.words}"
        else:
            yield "none: no step runs a model"

    def _describe_access(self) -> Iterator[str]:
        closed = [problem.message for problem in self.report.problems if problem.about == "access"]
        yield from dict.fromkeys(closed)
        if self.recipe.uploads:
            yield f"a token that may write to {', '.join(self.recipe.uploads)}"
        if not closed:
            seen = ", of what could be looked at" if self.report.of("unseen") else ""
            yield f"nothing is gated or needs a token{seen}"

    @property
    def _computing(self) -> list[StepWork]:
        return [one for one in self.report.work if one.work.kind != "merging"]

    @property
    def _unsized(self) -> list[StepWork]:
        return [one for one in self._computing if one.parameters is None]


def _round_hours(hours: float) -> str:
    if hours < 0.01:
        return "less than 0.01"
    return f"about {hours:.2g}" if hours < 100 else f"about {hours:,.0f}"


def _count_words(count: float) -> str:
    """Return a large number in words: `3.2 million`."""
    for size, word in ((10**12, "trillion"), (_BILLION, "billion"), (10**6, "million")):
        if count >= size:
            return f"{count / size:.3g} {word}"
    return f"{count:,.0f}"

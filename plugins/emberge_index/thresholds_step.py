"""The `thresholds` step: maps thresholds of cosine to a new model, and requires a limit on their shift."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from emberge import (
    Artifact,
    ArtifactKind,
    Backbone,
    CheckpointError,
    Cosine,
    DataEntry,
    ModelRef,
    NumberRange,
    Preflight,
    Problem,
    Step,
    TextLength,
    Workspace,
    component,
)
from emberge.wording import prose, table_lines

from emberge_index.space import probe_texts
from emberge_index.threshold_interval import threshold_intervals
from emberge_index.threshold_map import FEWEST, MovedThreshold, threshold_map
from emberge_index.translation import EmbeddedProbes, Probes, embed, model_problems, probes_of

if TYPE_CHECKING:
    from emberge_index.threshold_interval import ThresholdInterval
    from emberge_index.threshold_map import ThresholdMap


TABLE = "thresholds.md"
_SAME = "old and new are the same model, so every threshold stays as it is"


@dataclass(frozen=True, kw_only=True)
class ShiftRequirement:
    """Claim about thresholds; if it is false, the run ends with exit code 3.

    Each threshold in the step's `at` may differ by at most `threshold_shift` from the new model's threshold
    with as many false positives. If fewer than 30 pairs of texts, or all pairs, are above a threshold, its
    shift cannot be measured, and the claim is not met.
    """

    threshold_shift: Annotated[float, NumberRange(least=0, most=2)]


@dataclass(frozen=True, kw_only=True)
class Thresholds(Step):
    """Map of thresholds of cosine from an old model to a new one, at equal rates of false positives.

    If a rule such as "cosine of 0.8 or more means duplicate" is used with another model, a different share of
    pairs meets it. Both models embed the same texts as documents. Every pair of different texts counts as a
    false positive, except two documents of one query. Equally many false positives pass the old and the new
    threshold.

    So the map is for rules between two documents, such as "is a duplicate". It does not move the limit of a
    search between a query and a document, whose cosines lie elsewhere. Each threshold in `at` has a 95 %
    interval, by a bootstrap over the texts, which is wide if few pairs are above the threshold.

    The result has the map as `thresholds.json`, which other programs can read, and a table. With `require:
    {threshold_shift: 0.05}` the run ends with exit code 3 if a threshold in `at` moves by more than 0.05.

    Example:
        rules:
          thresholds:
            old: ./v1
            new: ./v2
            data: ./passages.jsonl
            at: [0.7, 0.8]
            require: {threshold_shift: 0.05}
    """

    produces: ClassVar[ArtifactKind] = "report"
    loads: ClassVar[tuple[str, ...]] = ("torch", "transformers")

    old: ModelRef
    """Model that thresholds were chosen for."""
    new: ModelRef
    """Model that replaces the old one."""
    data: tuple[DataEntry, ...] = ()
    """Texts to compare, passages of pairs and lone texts; by default paragraphs of Python's own help, which
    are few and unlike each other."""
    at: tuple[Cosine, ...] = ()
    """Thresholds in use, from -1 to 1."""
    require: ShiftRequirement | None = None
    """Claim about the thresholds in `at` that must be true."""
    sample: Annotated[int, NumberRange(least=FEWEST)] = 2000
    """Largest number of texts to compare; larger data is sampled at even distances."""
    backbone: Backbone = component("text_encoder")
    """Backbone that loads both checkpoints."""
    max_length: TextLength | None = None
    """Largest number of tokens of a text; by default each model's own limit."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        if self.require is not None and not self.at:
            yield context.problem("name the thresholds that it is about under 'at'", "require")
        yield from self._check_data(context)
        for option in ("old", "new"):
            yield from model_problems(context, option, getattr(self, option), self.backbone)
        if self.old == self.new:
            yield context.warning(_SAME, "new")

    def _check_data(self, context: Preflight) -> Iterator[Problem]:
        from emberge.data import check_datasets

        checked = check_datasets(context, self.data)
        yield from checked.problems
        counts = [head.texts for head in checked.heads]
        total = sum(count or 0 for count in counts)
        if counts and None not in counts and total < FEWEST:
            yield context.problem(
                f"{total:,} texts are too few: thresholds need {FEWEST} different ones; give more texts",
                "data",
            )

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.files import write_text

        texts, same_pairs = self._choose_texts(workspace)
        old, new = (self._embed_texts(side, texts, workspace) for side in (self.old, self.new))
        thresholds = threshold_map(old.documents[:], new.documents[:], same_pairs)
        moved_thresholds = [thresholds.moved(side) for side in self.at]
        vectors = old.documents[:], new.documents[:]
        intervals = threshold_intervals(*vectors, self.at, thresholds, same_pairs)
        claims = list(self._check_claims(moved_thresholds))
        failed_claims = [text for met, text in claims if not met]
        content = {
            "old_model": old.name,
            "new_model": new.name,
            "texts": len(texts),
            **thresholds.plain(),
            "at": [
                {**asdict(side), "shift": side.shift, "low": interval.low, "high": interval.high}
                for side, interval in zip(moved_thresholds, intervals, strict=True)
            ],
        }
        write_text(workspace.folder / "thresholds.json", json.dumps(content, indent=1) + "\n")
        notes = [f"- {'met' if met else 'NOT MET'}: {text}" for met, text in claims]
        table = [
            *_draw_table(old, new, len(texts), thresholds, moved_thresholds, intervals),
            *(["", *notes] if notes else []),
        ]
        write_text(workspace.folder / TABLE, "\n".join(table) + "\n")
        return Artifact(
            kind="report",
            parents=(old.name, new.name),
            details={
                "table": TABLE,
                "thresholds": {key: content[key] for key in ("pairs", "table", "at")},
                "figures": [_build_figure(old, new, thresholds, moved_thresholds, claims)],
                "unmet": failed_claims,
            },
            warnings=(_SAME,) if old.fingerprint == new.fingerprint else (),
        )

    def _choose_texts(self, workspace: Workspace) -> tuple[list[str], list[tuple[int, int]]]:
        """Return (different texts, index pairs of texts that are documents of the same query)."""
        import numpy as np
        from emberge.data import step_datasets

        if not self.data:
            return list(dict.fromkeys(probe_texts())), []
        sets = step_datasets(workspace, self.data)
        probes = probes_of(sets, workspace.work)
        total = len(probes.documents)
        sample = np.unique(np.linspace(0, total - 1, min(total, self.sample)).round().astype(int))
        place_of = {int(row): number for number, row in enumerate(sample)}
        texts = [probes.documents[row] for row in place_of]
        same_pairs = [
            pair
            for documents in probes.relevant
            for pair in itertools.combinations(
                sorted(place_of[i] for i in documents if i in place_of), 2
            )
        ]
        return texts, same_pairs

    def _embed_texts(
        self, model: ModelRef, texts: Sequence[str], workspace: Workspace
    ) -> EmbeddedProbes:
        try:
            return embed(
                model,
                Probes(texts, (), ()),
                workspace,
                backbone=self.backbone,
                max_length=self.max_length,
                prompts={"documents": None},
            )
        except CheckpointError as error:
            raise CheckpointError(f"{model}: {error}") from error

    def _check_claims(
        self, moved_thresholds: Sequence[MovedThreshold]
    ) -> Iterator[tuple[bool, str]]:
        """Yield (is met, claim as text) for each threshold."""
        if self.require is None:
            return
        most = self.require.threshold_shift
        for threshold in moved_thresholds:
            if threshold.known:
                yield (
                    threshold.shift <= most,
                    f"the threshold {threshold.old:g} becomes {threshold.new:.4f} at "
                    f"{threshold.rate:.3%} false positives: "
                    f"{threshold.shift:.4f} away, and {most:g} is allowed (threshold_shift)",
                )
            else:
                yield (
                    False,
                    f"where the threshold {threshold.old:g} goes cannot be told: "
                    f"{threshold.doubt}; give more texts as "
                    f"data, or texts {'less' if threshold.rate == 1 else 'more'} alike",
                )


def _draw_table(
    old: EmbeddedProbes,
    new: EmbeddedProbes,
    texts: int,
    thresholds: ThresholdMap,
    moved: Sequence[MovedThreshold],
    intervals: Sequence[ThresholdInterval],
) -> Iterator[str]:
    """Yield the map as lines of Markdown."""
    yield f"# Thresholds from {prose(old.name)} to {prose(new.name)}"
    yield ""
    yield f"Cosines of {thresholds.pairs:,} pairs of {texts:,} different texts, as documents."
    if moved:
        rows = [
            [
                f"{threshold.old:g}",
                f"{threshold.new:.4f}",
                str(interval),
                f"{threshold.new - threshold.old:+.4f}",
                f"{threshold.rate:.3%}{'' if threshold.known else f', {threshold.doubt}'}",
            ]
            for threshold, interval in zip(moved, intervals, strict=True)
        ]
        head = ["threshold", "becomes", "95 % interval", "shift", "false positives"]
        yield from ("", *table_lines(head, rows, "rrrrr"))
    rates = [[f"{rate:.2%}", f"{old:.4f}", f"{new:.4f}"] for rate, old, new in thresholds.table()]
    yield from ("", *table_lines(["false positives", "old", "new"], rates, "rrr"))


def _build_figure(
    old: EmbeddedProbes,
    new: EmbeddedProbes,
    thresholds: ThresholdMap,
    moved: Sequence[MovedThreshold],
    claims: Sequence[tuple[bool, str]],
) -> dict[str, Any]:
    """Return the figure of both models' thresholds by false-positive rate, with a table of those in `at`."""
    rows = list(thresholds.table())
    claim_lines = [f"{'Required and met' if met else 'Not met'}: {text}." for met, text in claims]
    figure: dict[str, Any] = {
        "title": "Thresholds with equally many false positives",
        "caption": " ".join(
            [f"From {old.name} to {new.name}, {thresholds.pairs:,} pairs of texts.", *claim_lines]
        ),
        "lines": {
            "x": "false positives",
            "y": "cosine",
            "labels": [f"{rate:.2%}" for rate, *_ in rows],
            "series": {
                "old": [cosine for _, cosine, _ in rows],
                "new": [cosine for *_, cosine in rows],
            },
        },
    }
    if moved:
        figure["table"] = {
            "title": "Thresholds in use",
            "head": ["old", "new", "shift", "false positives"],
            "rows": [
                [f"{o.old:g}", f"{o.new:.4f}", f"{o.new - o.old:+.4f}", f"{o.rate:.3%}"]
                for o in moved
            ],
        }
    return figure

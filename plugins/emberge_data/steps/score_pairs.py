"""The `score_pairs` step: a teacher's scores of every positive and negative."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from emberge import Artifact, DataError, Preflight, Problem, Workspace
from emberge.model_folder import CrossEncoderFacts, TextLimit

from emberge_data.steps.cross_encoder import (
    CrossEncoderModel,
)
from emberge_data.steps.data_step import DataStep
from emberge_data.steps.listed_set import without_positives
from emberge_data.steps.outcome import Outcome
from emberge_data.steps.pair_scores import PairScores, Score, Segment, list_pairs, pair_cosines
from emberge_data.steps.teacher import Teacher

if TYPE_CHECKING:
    from emberge.data import StoredDataset


_HIGHER = "scored, a negative above a positive"


@dataclass(frozen=True, kw_only=True)
class ScorePairs(DataStep):
    """Add a teacher's score, from 0 to 1, to every positive and negative.

    The teacher is an encoder, which scores by cosines, or a cross-encoder, which reads both texts together: a
    folder of sentence-transformers' CrossEncoder, or a sequence classification of transformers with one
    output. Scores are what the losses `margin_mse` (Hofstätter et al., 2020, arXiv:2010.02666) and
    `kl_distillation` learn from. A cross-encoder's logit x becomes 1 / (1 + e^-x), and a cosine c becomes (1
    + c) / 2. Scores that the sets already have are replaced.

    A cross-encoder's `max_length` counts the tokens of both texts together, and prompts are put before texts
    only if the teacher's options set them. The table counts rows in which a negative has a higher score than
    a positive: either the row or the teacher may be wrong.

    Example:
        scored:
          score_pairs:
            data: ./pairs.jsonl
            teacher: {model: cross-encoder/ms-marco-MiniLM-L6-v2}
    """

    every_rank = True

    teacher: Teacher
    """The model that scores."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        problems, checked = self.checked_data(context)
        yield from problems
        for head in checked.heads:
            if not head.example.positives:
                yield context.problem(without_positives(head.info.name), "data")
            elif head.example.positive_scores or head.example.negative_scores:
                yield context.warning(
                    f"{head.info.name}: it has scores, which are replaced by the teacher's", "data"
                )
        folder = context.model(self.teacher.model)
        facts = None if folder is None else CrossEncoderFacts.read(folder)
        if facts is not None and facts.is_one:
            lengths = TextLimit.read(facts.folder).problems(self.teacher.max_length)
            for message in [*facts.problems, *lengths]:
                yield context.problem(message, "teacher")
        else:
            yield from self.teacher.check(context)

    def run(self, workspace: Workspace) -> Artifact:
        """Score all pairs, each rank a share of them; then the first rank writes the sets with their scores.

        Raises:
            DataError: if a set has no pairs.
        """
        from emberge.ranks import join_ranks

        datasets = self.load(workspace)
        for dataset in datasets:
            if dataset.info.task == "text" or dataset.draws:
                raise DataError(without_positives(dataset.info.name))
        scores_by_set = [
            PairScores(workspace.work / "scores" / str(number), dataset)
            for number, dataset in enumerate(datasets)
        ]
        with self._load_scorer(workspace) as (scale, scorer):
            for number, (dataset, scores) in enumerate(
                zip(datasets, scores_by_set, strict=True), 1
            ):
                with workspace.part("set", number, len(datasets), dataset.info.name):
                    self._fill(dataset, scores, scorer(dataset), workspace)
        if not join_ranks(workspace.machine.device).is_first:
            return Artifact(kind="data")
        figures = {dataset.info.name: _Figures() for dataset in datasets}
        sets = (
            (dataset, _yield_outcomes(scores, scale, figures[dataset.info.name]))
            for dataset, scores in zip(datasets, scores_by_set, strict=True)
        )
        artifact = self.finish(workspace, sets, scored_by=(self.teacher.model.text,))
        plain = {name: figure.plain() for name, figure in figures.items()}
        return dataclasses.replace(artifact, details={**artifact.details, "scores": plain})

    def _fill(
        self, dataset: StoredDataset, scores: PairScores, score: Score, workspace: Workspace
    ) -> None:
        """Score a set's pairs on all ranks, and count the pairs that are too long for the teacher."""
        from emberge.ranks import join_ranks

        ranks = join_ranks(workspace.machine.device)
        show_progress = partial(workspace.progress, total=len(dataset), unit="rows")
        scores.fill(score, rank=ranks.rank, ranks=ranks.size, done=show_progress)
        if ranks.size > 1:  # each waits for all, however long that takes
            key = f"scored/{workspace.id}/{dataset.info.name}"
            ranks.send(f"{key}/{ranks.rank}", True)
            for rank in range(ranks.size):
                ranks.receive(f"{key}/{rank}")
        if cut := scores.cut():
            workspace.warn(
                f"{dataset.info.name}: {cut:,} pairs are longer than the teacher reads, so the end of their "
                "longer text counts for nothing"
            )

    @contextmanager
    def _load_scorer(
        self, workspace: Workspace
    ) -> Iterator[tuple[Callable[[float], float], Callable[[StoredDataset], Score]]]:
        """Load the teacher; return the scale of its scores, and a function that scores a set's segments."""
        model = workspace.model(self.teacher.model)
        if not CrossEncoderFacts.read(model.folder).is_one:
            with self.teacher.opened(workspace) as teacher:
                yield _score_half, partial(pair_cosines, teacher, workspace=workspace)
            return
        with workspace.whole_model(model) as folder:
            cross = CrossEncoderModel(
                folder,
                device=workspace.machine.device,
                max_length=self.teacher.max_length,
            )
            yield _apply_sigmoid, lambda _: partial(self._read_logits, cross)

    def _read_logits(
        self, cross: CrossEncoderModel, segment: Segment
    ) -> tuple[Sequence[float], int]:
        """Return a cross-encoder's outputs for the pairs of a segment; equal pairs are read once."""
        query_prefix, document_prefix = (
            self.teacher.query_prompt or "",
            self.teacher.document_prompt or "",
        )
        pairs = [
            (query_prefix + anchor, document_prefix + text) for anchor, text in list_pairs(segment)
        ]
        places = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
        logits = cross.logits([*places])
        return [float(logits[places[pair]]) for pair in pairs], cross.count_cut(pairs)


def _apply_sigmoid(logit: float) -> float:
    exponential = math.exp(-abs(logit))
    return (1.0 if logit >= 0 else exponential) / (1.0 + exponential)


def _score_half(cosine: float) -> float:
    return (1.0 + cosine) / 2.0


@dataclass
class _Figures:
    """Statistics (sums and extremes) of one set's scores."""

    lowest: float = math.inf
    highest: float = -math.inf
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, side: str, unscaled: Sequence[float], scaled: Sequence[float]) -> None:
        """Add scores of one side, unscaled and as they are written."""
        if unscaled:
            self.lowest, self.highest = min(self.lowest, *unscaled), max(self.highest, *unscaled)
            self.sums[side] = self.sums.get(side, 0.0) + sum(scaled)
            self.counts[side] = self.counts.get(side, 0) + len(unscaled)

    def plain(self) -> dict[str, float]:
        """Return the extremes of the unscaled scores, and the means of the written scores by side."""
        means = {side: round(self.sums[side] / count, 6) for side, count in self.counts.items()}
        return {"lowest": self.lowest, "highest": self.highest, **means}


def _yield_outcomes(
    scores: PairScores, scale: Callable[[float], float], figures: _Figures
) -> Iterator[Outcome]:
    """Yield every row with its scores."""
    for row, example, positives_unscaled, negatives_unscaled in scores.rows():
        positives, negatives = (
            tuple(scale(score) for score in side)
            for side in (positives_unscaled, negatives_unscaled)
        )
        figures.add("positives", positives_unscaled, positives)
        figures.add("negatives", negatives_unscaled, negatives)
        scored_example = dataclasses.replace(
            example, positive_scores=positives, negative_scores=negatives
        )
        is_inverted = bool(negatives_unscaled) and max(negatives_unscaled) > min(positives_unscaled)
        yield Outcome(row, example, scored_example, _HIGHER if is_inverted else "scored")

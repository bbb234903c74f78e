"""The judgement of a mixture: scores of its merges, foretold from embeddings and merged for real."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from emberge import Backbone, CheckpointError, Model, Stage, Workspace
from numpy.typing import NDArray

from emberge_weights.candidates import HeldOut
from emberge_weights.members import SetEmbedder, SideVectors, plan_members
from emberge_weights.mixture.worth import Worth, extrapolate, find_worth, leave_one_out
from emberge_weights.real_merges import merge_and_embed
from emberge_weights.set_scores import score_set
from emberge_weights.unit_scores import mean_score, standard_error
from emberge_weights.weight_sets import WeightSet

Array = NDArray[np.float64]
# One member's vectors of every set.
Vectors = Sequence[SideVectors]


@dataclass(frozen=True)
class MergedAt:
    """Score of a merge of one training of each group, `scale` times as far, foretold and real."""

    scale: float
    foretold: float
    real: float


@dataclass(frozen=True, eq=False)
class Judgement:
    """The worth of each group of a mixture, and the shares that follow.

    `by_set` has each group's worth on each set, [groups, sets], at the scale that is best. `given` are the
    merges of the mixture as it was given, at each scale, and `kept` those without the groups that harm.
    `confirmed` is the gain of the second over the first, merged for real; None if nothing harms.
    """

    given_shares: Mapping[str, float]
    shares: Mapping[str, float]
    worth: Mapping[str, Worth]
    set_names: Sequence[str]
    by_set: Array
    scale: float
    base_score: float
    given: Sequence[MergedAt]
    kept: Sequence[MergedAt]
    confirmed: HeldOut | None

    @property
    def harmful(self) -> list[str]:
        """Names of the groups that harm by the embeddings."""
        return [name for name, worth in self.worth.items() if worth.verdict == "harms"]

    @property
    def is_changed(self) -> bool:
        """True if the shares are others than the given ones."""
        return dict(self.shares) != dict(self.given_shares)


@dataclass(frozen=True, kw_only=True)
class MixtureJudge:
    """Scorer of a mixture by the models of its groups, equally many trainings of each."""

    specialists: Mapping[str, Sequence[Model]]
    base: Model
    shares: Mapping[str, float]
    scales: Sequence[float]
    sets: Sequence[WeightSet]
    backbone: Backbone
    max_length: int | None
    workspace: Workspace

    def run(self) -> Judgement:
        """Return the judgement, after all models have embedded the sets and some merges were made."""
        self._require_draws()
        plan_members(self._first, self._strategy)
        members = self._embed_members()
        weightings = leave_one_out([self.shares[name] for name in self.specialists])
        contributions = self._score(weightings, members)
        means = np.mean([one.mean(-1) for one in contributions], axis=0)
        best = int(means[:, :, 0].mean(0).argmax())
        differences = [one[:, best, :1] - one[:, best, 1:] for one in contributions]
        worth = dict(zip(self.specialists, find_worth(differences), strict=True))
        mixtures = [weightings[0]]
        is_kept = np.array([one.verdict != "harms" for one in worth.values()])
        if 0 < is_kept.sum() < len(is_kept):
            kept = weightings[0] * is_kept
            mixtures.append(kept / kept.sum())
        foretold = self._score(np.stack(mixtures), members[:1])
        real = [
            [self._merge(mixture, place, members[0]) for place in range(len(self.scales))]
            for mixture in mixtures
        ]
        tables = [
            [
                MergedAt(
                    scale,
                    float(np.mean([one[0, place, row].mean() for one in foretold])),
                    float(mean_score(real[row][place])[0]),
                )
                for place, scale in enumerate(self.scales)
            ]
            for row in range(len(mixtures))
        ]
        confirmed = None
        if len(mixtures) > 1:
            gains = [
                after - before for before, after in zip(real[0][best], real[1][best], strict=True)
            ]
            confirmed = HeldOut(float(mean_score(gains)[0]), float(standard_error(gains)[0]))
        is_better = confirmed is not None and confirmed.difference > 0
        found = dict(zip(self.specialists, map(float, mixtures[-1]), strict=True))
        return Judgement(
            given_shares=self.shares,
            shares=found if is_better else self.shares,
            worth=worth,
            set_names=[one.name for one in self.sets],
            by_set=np.stack([one.mean((0, 2)) for one in differences], axis=1),
            scale=self.scales[best],
            base_score=float(mean_score(self._score_alone(members[0][-1]))[0]),
            given=tables[0],
            kept=tables[1] if len(mixtures) > 1 else (),
            confirmed=confirmed,
        )

    def _require_draws(self) -> None:
        """Require that the trainings of a group differ, as their spread is part of the intervals.

        Raises:
            CheckpointError: if two are the same model.
        """
        for name, models in self.specialists.items():
            if len({model.fingerprint for model in models}) < len(models):
                raise CheckpointError(
                    f"trainings of '{name}' with different seeds are the same model, so their spread cannot "
                    "be told; take a sampler that shuffles, such as batch_shuffle, and a rate above 0"
                )

    @cached_property
    def _first(self) -> list[Model]:
        """The first training of each group and, last, their base."""
        return [*(models[0] for models in self.specialists.values()), self.base]

    @cached_property
    def _strategy(self) -> Stage:
        """The weighted sum, in which the base's weight is below 0 where the step from it is longer."""
        strategy: Stage = self.workspace.plugins.find("linear", "merge strategy").type(
            normalize=False
        )
        return strategy

    @cached_property
    def _embedder(self) -> SetEmbedder:
        return SetEmbedder(
            sets=self.sets,
            backbone=self.backbone,
            prompt=None,
            max_length=self.max_length,
            workspace=self.workspace,
        )

    def _embed_members(self) -> list[list[Vectors]]:
        """Return the vectors of each training of all groups, with the base's last."""
        models = [model for group in self.specialists.values() for model in group]
        vectors = []
        for number, model in enumerate([*models, self.base], 1):
            with self.workspace.part("model", number, len(models) + 1, model.name):
                vectors.append(self._embedder.member(model))
        draws = len(models) // len(self.specialists)
        return [[*vectors[draw:-1:draws], vectors[-1]] for draw in range(draws)]

    def _score(self, weightings: Array, members: Sequence[Sequence[Vectors]]) -> list[Array]:
        """Return contributions of weightings of groups, [trainings, scales, weightings, units] by set."""
        rows = np.concatenate([extrapolate(weightings, scale) for scale in self.scales])
        pool = np.concatenate([extrapolate(weightings[:1], 1.0), np.eye(rows.shape[1])])
        return [
            np.stack(
                [
                    score_set(weight_set, [member[place] for member in one], rows, pool)
                    .contributions()
                    .reshape(len(self.scales), len(weightings), -1)
                    for one in members
                ]
            )
            for place, weight_set in enumerate(self.sets)
        ]

    def _merge(self, mixture: Array, place: int, members: Sequence[Vectors]) -> list[Array]:
        """Return the contributions [1, units] on each set of the first trainings' merge at a scale."""
        scale = self.scales[place]
        weights = extrapolate(mixture[None], scale)[0]
        with self.workspace.part("merge", place + 1, len(self.scales), f"scale {scale:g}"):
            merged = merge_and_embed(self._first, members, weights, self._strategy, self._embedder)
        return self._score_alone(merged)

    def _score_alone(self, vectors: Vectors) -> list[Array]:
        """Return the contributions [1, units] of one model on each set."""
        alone = np.eye(1)
        return [
            score_set(weight_set, [one], alone, alone).contributions()
            for weight_set, one in zip(self.sets, vectors, strict=True)
        ]

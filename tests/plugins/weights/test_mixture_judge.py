"""The judgement of a mixture by placed vectors: which scale, which spread, and what real merges decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import Model
from emberge_encoder import TextEncoder
from emberge_weights.members import SideVectors
from emberge_weights.mixture import judge as module
from emberge_weights.mixture.judge import Judgement, MixtureJudge
from emberge_weights.mixture.worth import extrapolate
from emberge_weights.weight_sets import WeightSet

from tests.support.bench import Bench

Array = np.ndarray[Any, Any]
QUERIES, SIZE, TRAININGS = 200, 24, 3
# How far a training moves each query to its document (or, below 0, to another one), by group and set.
Moves = Mapping[str, Sequence[float]]


def made_set(name: str) -> WeightSet:
    texts = [f"{name} {row}" for row in range(QUERIES)]
    relevant = [{row: 1} for row in range(QUERIES)]
    return WeightSet(name, "retrieval", "mean", "ndcg_at_10", texts, texts, relevant)


class Placed:
    """Vectors of a base and of trainings, in one piece for each set."""

    def __init__(
        self, moves: Moves, *, by_training: Mapping[str, Sequence[float]] | None = None
    ) -> None:
        draw = np.random.default_rng(0)
        self.moves = moves
        count = len(next(iter(moves.values())))
        self.sets = [made_set(f"set-{number}") for number in range(count)]
        documents = [draw.normal(size=(QUERIES, SIZE)) for _ in self.sets]
        queries = [0.2 * one + draw.normal(size=one.shape) for one in documents]
        self.base = list(zip(queries, documents, strict=True))
        self.groups: dict[str, list[list[tuple[Array, Array]]]] = {}
        for name, by_set in moves.items():
            factors = (by_training or {}).get(name, [1.0] * TRAININGS)
            self.groups[name] = [
                [
                    (q + factor * move * (d if move > 0 else -np.roll(d, 1, 0)), d)
                    for (q, d), move in zip(self.base, by_set, strict=True)
                ]
                for factor in factors
            ]

    def vectors(self, draw: int) -> list[list[tuple[Array, Array]]]:
        return [*(trainings[draw] for trainings in self.groups.values()), self.base]


def sides(pairs: Sequence[tuple[Array, Array]]) -> list[SideVectors]:
    return [SideVectors(*(side.astype(np.float32) for side in pair)) for pair in pairs]


def _mix(members: Any, number: int, side: str, weights: Array) -> Array:
    rows = [getattr(member[number], side) for member in members]
    return np.tensordot(weights, np.stack(rows), 1).astype(np.float32)


def judge(
    root: Path,
    placed: Placed,
    monkeypatch: pytest.MonkeyPatch,
    *,
    shares: Mapping[str, float] | None = None,
    scales: Sequence[float] = (1.0,),
    real: Callable[[Array, int], float] | None = None,
) -> Judgement:
    """The judgement; `real` is added to each unit of a merge, by the mixture and the scale's place."""
    names = list(placed.groups)

    class PlacedJudge(MixtureJudge):
        def _embed_members(self) -> Any:
            return [[sides(one) for one in placed.vectors(draw)] for draw in range(TRAININGS)]

        def _merge(self, mixture: Array, place: int, members: Any) -> list[Array]:
            weights = extrapolate(mixture[None], self.scales[place])[0]
            mixed = [
                SideVectors(
                    *(_mix(members, number, side, weights) for side in ("queries", "documents"))
                )
                for number in range(len(self.sets))
            ]
            more = 0.0 if real is None else real(mixture, place)
            return [one + more for one in self._score_alone(mixed)]

    monkeypatch.setattr(module, "plan_members", lambda *_: None)
    return PlacedJudge(
        specialists={
            name: [Model(f"{name}-{draw}", root, f"{name} {draw}") for draw in range(TRAININGS)]
            for name in names
        },
        base=Model("base", root, "base"),
        shares=shares or dict.fromkeys(names, 1 / len(names)),
        scales=scales,
        sets=placed.sets,
        backbone=TextEncoder(),
        max_length=None,
        workspace=Bench(root),
    ).run()


def test_what_harms_is_taken_out_and_what_cannot_be_told_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = Placed(
        {"good": [0.8], "unsure": [0.1], "bad": [-2.0]}, by_training={"unsure": [1.0, -1.0, 1.0]}
    )
    shares = {"good": 0.4, "unsure": 0.2, "bad": 0.4}
    found = judge(tmp_path, placed, monkeypatch, shares=shares)
    verdicts = {name: worth.verdict for name, worth in found.worth.items()}
    assert verdicts == {"good": "helps", "unsure": "cannot be told", "bad": "harms"}
    assert found.shares == pytest.approx({"good": 2 / 3, "unsure": 1 / 3, "bad": 0.0})
    assert found.given_shares == shares


@pytest.mark.parametrize(("scales", "best"), [((0.05, 1.0), 1), ((1.0, 0.05), 0)])
def test_worth_is_told_at_the_scale_that_scores_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scales: tuple[float, ...], best: int
) -> None:
    placed = Placed({"one": [0.6], "two": [0.5]})
    found = judge(tmp_path, placed, monkeypatch, scales=scales)
    alone = judge(tmp_path, placed, monkeypatch, scales=(1.0,))
    assert found.scale == scales[best] == 1.0
    assert found.given[best].foretold == max(one.foretold for one in found.given)
    assert found.worth == alone.worth
    assert np.array_equal(found.by_set, alone.by_set)
    assert found.given[best].foretold > found.base_score + 0.05
    assert found.given[best].real == pytest.approx(found.given[best].foretold, abs=1e-6)


def test_real_merges_decide_at_the_scale_that_is_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They deny at the other scale what they confirm at the best one."""
    found = judge(
        tmp_path,
        Placed({"good": [0.6], "well": [0.6], "bad": [-2.0]}),
        monkeypatch,
        scales=(0.05, 1.0),
        real=lambda mixture, place: -1.0 if place == 0 and mixture[-1] == 0 else 0.0,
    )
    assert found.scale == 1.0
    assert found.confirmed is not None
    assert found.confirmed.difference > 0
    assert found.confirmed.difference == pytest.approx(found.kept[1].real - found.given[1].real)
    assert found.shares == pytest.approx({"good": 0.5, "well": 0.5, "bad": 0.0})
    assert found.is_changed


def test_the_given_mixture_stays_where_real_merges_deny_the_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = {"good": 0.3, "well": 0.3, "bad": 0.4}
    found = judge(
        tmp_path,
        Placed({"good": [0.6], "well": [0.6], "bad": [-2.0]}),
        monkeypatch,
        shares=shares,
        real=lambda mixture, _: -1.0 if mixture[-1] == 0 else 0.0,
    )
    assert found.harmful == ["bad"]
    assert found.confirmed is not None
    assert found.confirmed.difference < 0
    assert found.shares == shares
    assert not found.is_changed


def test_worth_stands_in_the_column_of_its_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = Placed({"one": [0.8, 0.0], "two": [0.0, 0.8]})
    found = judge(tmp_path, placed, monkeypatch)
    assert found.set_names == ["set-0", "set-1"]
    assert found.by_set[0, 0] > 0.02 > -0.02 > found.by_set[0, 1]
    assert found.by_set[1, 1] > 0.02 > -0.02 > found.by_set[1, 0]


def test_every_training_of_a_group_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moves = {"one": [0.6], "two": [0.3]}
    steady = judge(tmp_path, Placed(moves), monkeypatch)
    other = judge(tmp_path, Placed(moves, by_training={"one": [1.0, -1.0, 1.0]}), monkeypatch)
    assert steady.worth["one"].verdict == "helps"
    assert other.worth["one"].verdict == "cannot be told"
    assert other.worth["one"].difference < steady.worth["one"].difference

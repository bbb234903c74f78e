"""Measures and curves of a fit, on vectors that a test chooses: each arm, each order, each half by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from emberge import DataError
from emberge.contracts import StoredForm
from emberge.encoding import QuantisedVectors
from emberge.numerics import ndcg, nearest_rows, overlap
from emberge_index.refresh_step import _measure_curves, _order_documents
from emberge_index.translation import arms, folds
from emberge_index.translation.arms import NEIGHBOURS, gain_kept, measures_of, table_of
from emberge_index.translation.folds import FittedFolds, fit_folds
from emberge_index.translation.maps import Map
from emberge_index.translation.probes import EmbeddedProbes, Probes
from emberge_index.translation.translation_file import (
    SpaceOf,
    Translation,
    TranslationHeader,
    are_unit,
    mahalanobis,
)
from emberge_index.translation.two_models import SAMPLE, Fit, _build_translation
from numpy.typing import NDArray

from tests.support.translations import vectors


class Rows:
    """Vectors in memory with the dimension that a store's have."""

    def __init__(self, rows: NDArray[Any]) -> None:
        self.rows = np.asarray(rows, np.float32)
        self.dimension = self.rows.shape[1]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, places: Any) -> NDArray[np.float32]:
        return self.rows[places]


def embedded(name: str, documents: NDArray[Any], queries: NDArray[Any] | None) -> EmbeddedProbes:
    found: Any = Rows(documents), None if queries is None else Rows(queries)
    return EmbeddedProbes(name, name * 64, *found, {"documents": "", "queries": ""})


def fit_of(
    old: tuple[NDArray[Any], NDArray[Any] | None],
    new: tuple[NDArray[Any], NDArray[Any] | None],
    mapped: NDArray[Any],
    relevant: Sequence[Sequence[int]] = (),
    *,
    side: Any = "documents",
    backwards: bool = False,
) -> Fit:
    width = old[0].shape[1]
    space = SpaceOf("old", "a" * 64, "", width, True)
    translation = Translation(
        TranslationHeader("affine", side, space, space, len(mapped)),
        Map(np.eye(width), np.zeros(width)),
        np.zeros(width),
        np.eye(width, dtype=np.float32),
        1.0,
    )
    probes = Probes([""] * len(old[0]), [""] * len(relevant), relevant)
    fitted = FittedFolds(translation.fitted, None, np.asarray(mapped, np.float32))
    return Fit(translation, fitted, probes, embedded("o", *old), embedded("n", *new), backwards)


def random(rows: int, seed: int) -> NDArray[Any]:
    return np.random.default_rng(seed).normal(size=(rows, 8)).astype(np.float32)


def nearest(queries: NDArray[Any], documents: NDArray[Any]) -> NDArray[Any]:
    return nearest_rows(queries, documents, NEIGHBOURS)


# ── measures ────────────────────────────────────────────────────────────────────────────────────


def test_each_arm_asks_its_own_queries_for_its_own_documents() -> None:
    old, new, mapped = (random(40, 1), random(6, 2)), (random(40, 3), random(6, 4)), random(40, 5)
    relevant = [[place] for place in range(6)]
    found = measures_of(fit_of(old, new, mapped, relevant))["overlap"]
    best = nearest(new[1], new[0])
    assert found == {
        "old": overlap(nearest(old[1], old[0]), best),
        "untouched": overlap(nearest(new[1], old[0]), best),
        "mapped": overlap(nearest(new[1], mapped), best),
    }
    assert len(set(found.values())) == 3


def test_a_bridges_mapped_queries_ask_the_old_documents() -> None:
    old, new, mapped = (random(40, 1), random(6, 2)), (random(40, 3), random(6, 4)), random(6, 5)
    relevant = [[place] for place in range(6)]
    made = fit_of(old, new, mapped, relevant, side="queries", backwards=True)
    found = measures_of(made)
    best = nearest(new[1], new[0])
    assert found["overlap"]["mapped"] == overlap(nearest(mapped, old[0]), best)
    assert found["texts"] == 6
    forwards = measures_of(fit_of(old, new, mapped, relevant, side="queries"))
    assert forwards["overlap"]["mapped"] == overlap(nearest(mapped, new[0]), best)


def test_a_map_back_to_the_old_documents_is_asked_by_the_old_queries() -> None:
    old, new, mapped = (random(40, 1), random(6, 2)), (random(40, 3), random(6, 4)), random(40, 5)
    made = fit_of(old, new, mapped, [[place] for place in range(6)], backwards=True)
    best = nearest(new[1], new[0])
    assert measures_of(made)["overlap"]["mapped"] == overlap(nearest(old[1], mapped), best)


def test_without_queries_documents_ask_for_their_neighbours() -> None:
    old, new, mapped = random(40, 1), random(40, 3), random(40, 5)
    found = measures_of(fit_of((old, None), (new, None), mapped))
    own = np.arange(40)
    best = nearest_rows(new, new, NEIGHBOURS, skipped=own)
    assert not (best == own[:, None]).any()
    assert found["overlap"]["untouched"] == overlap(
        nearest_rows(new, old, NEIGHBOURS, skipped=own), best
    )
    assert "ndcg" not in found
    assert table_of(found, "t")[-1].count("| ") == 4


def test_the_cosine_is_to_the_target_of_the_map() -> None:
    old, new = random(40, 1), random(40, 3)
    forwards = measures_of(fit_of((old, None), (new, None), new))
    backwards = measures_of(fit_of((old, None), (new, None), old, backwards=True))
    for found in (forwards, backwards):
        assert found["cosine"]["mean"] == pytest.approx(1, abs=1e-6)
        assert found["cosine"]["p5"] == pytest.approx(1, abs=1e-6)


def test_vectors_of_other_sizes_have_no_untouched_index() -> None:
    wide = np.hstack([random(40, 1), random(40, 2)])
    found = measures_of(fit_of((wide, None), (random(40, 3), None), random(40, 3)))
    assert set(found["overlap"]) == {"old", "mapped"}
    assert found["overlap"]["mapped"] == 1


def test_queries_whose_documents_are_beyond_the_first_ones_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 60 documents 20 are compared, and those of the queries are the last."""
    monkeypatch.setattr(arms, "MOST_DOCUMENTS", 20)
    old, new = (random(60, 1), random(4, 2)), (random(60, 3), random(4, 4))
    relevant = [[59], [], [58, 2], [57]]
    found = measures_of(fit_of(old, new, new[0], relevant))
    places = [*range(17), 57, 58, 59]
    chosen = [0, 2, 3]
    best = nearest(new[1][chosen], new[0][places])
    assert found["overlap"]["old"] == overlap(nearest(old[1][chosen], old[0][places]), best)
    assert found["ndcg"]["new"] == found["ndcg"]["mapped"]
    own = [{19: 1}, {18: 1, 2: 1}, {17: 1}]
    assert found["ndcg"]["new"] == arms.ndcg(best, own)


def test_queries_of_more_documents_than_are_compared_are_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arms, "MOST_DOCUMENTS", 4)
    chosen, places = arms._choose_compared([[1, 2, 3], [4, 5], [6, 7], [8, 9]], 20)
    assert chosen.tolist() == [0, 1, 2]
    assert places.tolist() == [1, 2, 3, 4, 5, 6, 7]
    chosen, places = arms._choose_compared([[7]], 20)
    assert chosen.tolist() == [0]
    assert places.tolist() == [0, 1, 2, 7]
    monkeypatch.setattr(arms, "MOST_QUERIES", 2)
    assert arms._choose_compared([[], [3], [2], [1]], 4)[0].tolist() == [1, 2]


# ── curves of a refresh ─────────────────────────────────────────────────────────────────────────

# 40 documents on as many axes: the query of each finds it with the new model, and last of all with the old.
AXES = np.eye(40, dtype=np.float32)


def curves(shares: Sequence[float], **changes: Any) -> dict[str, Any]:
    relevant = [[place] for place in range(40)]
    given: dict[str, Any] = {"mapped": -AXES, "old": -AXES, **changes}
    made = fit_of((given["old"], AXES), (AXES, AXES), given["mapped"], relevant)
    return _measure_curves(made, shares, StoredForm(), seed=0)


def test_the_log_and_the_scored_queries_are_different_halves() -> None:
    """The log hits the even documents, and embedding those anew gives the odd queries nothing."""
    mapped = AXES.copy()
    mapped[1::2] = -AXES[1::2] - AXES[::2].sum(0) / 5
    found = curves([0, 0.5, 1], mapped=mapped)
    assert found["ndcg"]["hits"] == [0, 0, 1]
    assert found["gain_kept"]["hits"] == [0, 0, 1]


def test_the_least_like_the_fit_are_embedded_first() -> None:
    old = -AXES
    old[1::2] *= 3  # the odd ones, which the scored queries want, are far from the mean of zero
    found = curves([0, 0.5, 1], old=old)
    assert found["ndcg"]["strange"] == [0, 1, 1]
    assert 0.2 < found["ndcg"]["random"][1] < 0.8


def test_a_share_is_rounded_to_documents() -> None:
    found = curves([0, 0.01, 0.02, 0.03])
    assert found["ndcg"]["random"][0] == found["ndcg"]["random"][1]
    assert found["shares"] == [0, 0.01, 0.02, 0.03]


def test_a_curve_needs_four_queries() -> None:
    made = fit_of((AXES, AXES), (AXES, AXES), AXES, [[0], [1], [2], []])
    with pytest.raises(DataError, match="3 queries"):
        _measure_curves(made, [0.5], StoredForm(), seed=0)
    made = fit_of((AXES, AXES), (AXES, AXES), AXES, [[0], [1], [2], [], [4]])
    assert _measure_curves(made, [0.5], StoredForm(), seed=0)["new"] == 1


# ── fits ────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_usual_is_measured_on_vectors_that_the_axes_have_not_seen() -> None:
    source = vectors(60, 24)
    header = TranslationHeader(
        "shift", "documents", *[SpaceOf("a", "a" * 64, "", 24, True)] * 2, 60
    )
    made = _build_translation(header, fit_folds(source, source, np.arange(60) % 5, "shift"), source)
    seen, unseen = (mahalanobis(source[start::2], made.mean, made.axes) for start in (0, 1))
    assert made.usual == pytest.approx(unseen, rel=1e-6)
    assert made.usual > 1.1 * seen
    np.testing.assert_allclose(made.mean, source[::2].mean(0), rtol=1e-5)
    assert made.strangeness(source[1::2]) == pytest.approx(1, rel=1e-6)
    assert made.strangeness(-source) > 3
    assert SAMPLE >= 1000


@pytest.mark.parametrize("piece", [1, 7, 100])
def test_no_text_is_lost_between_pieces(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = vectors(200, 6), vectors(200, 6, seed=1)
    own = np.arange(200) % folds.FOLDS
    whole = fit_folds(x, y, own, "affine", ridge=0.1)
    monkeypatch.setattr(folds, "PIECE", piece)
    parts = fit_folds(x, y, own, "affine", ridge=0.1)
    np.testing.assert_allclose(parts.fitted.matrix, whole.fitted.matrix, rtol=0, atol=1e-12)
    np.testing.assert_allclose(parts.fitted.offset, whole.fitted.offset, rtol=0, atol=1e-12)
    np.testing.assert_allclose(parts.out_of_fold, whole.out_of_fold, rtol=0, atol=1e-6)


def test_gain_by_hand() -> None:
    assert gain_kept({"old": 0.2, "new": 0.6, "mapped": 0.5}) == pytest.approx(0.75)
    assert gain_kept({"old": 0.2, "new": 0.6, "untouched": 0.1}, "untouched") == pytest.approx(
        -0.25
    )
    assert gain_kept({"old": 0.2, "new": 0.2, "mapped": 0.5}) is None


def test_lengths_are_told_as_far_as_float16_can() -> None:
    rows = vectors(20, 24)
    assert are_unit(rows)
    assert are_unit(rows * 1.004)
    assert not are_unit(rows * 1.006)
    assert not are_unit(rows * 0.994)
    one = rows.copy()
    one[3] *= 2
    assert not are_unit(one)


def test_a_table_has_a_line_an_arm() -> None:
    measured = {
        "texts": 1234,
        "cosine": {"mean": 0.91234, "p5": 0.8},
        "overlap": {"old": 0.25, "mapped": 0.5},
        "ndcg": {"old": 0.2, "mapped": 0.3, "new": 0.4},
        "gain_kept": {"mapped": 0.5},
    }
    assert table_of(measured, "from a to b") == [
        "# from a to b",
        "",
        "Out of fold, 1,234 texts: cosine 0.9123 in the mean, 0.8000 at the lowest 5 %.",
        "",
        "|  | shared with the new model's first ten | nDCG@10 | gain kept |",
        "| --- | --- | --- | --- |",
        "| old queries, old documents | 25.0% | 20.00 |  |",
        "| mapped | 50.0% | 30.00 | 50% |",
        "| new queries, new documents | 100.0% | 40.00 |  |",
    ]


def test_scores_are_of_each_arm_and_gains_of_those_that_can_gain() -> None:
    old, new, mapped = (random(40, 1), random(6, 2)), (random(40, 3), random(6, 4)), random(40, 5)
    relevant = [[place, place + 20] for place in range(6)]
    grades = [dict.fromkeys(one, 1) for one in relevant]
    found = measures_of(fit_of(old, new, mapped, relevant))
    assert found["ndcg"] == {
        "old": ndcg(nearest(old[1], old[0]), grades),
        "untouched": ndcg(nearest(new[1], old[0]), grades),
        "mapped": ndcg(nearest(new[1], mapped), grades),
        "new": ndcg(nearest(new[1], new[0]), grades),
    }
    assert set(found["gain_kept"]) == {"untouched", "mapped"}
    assert found["gain_kept"]["mapped"] == gain_kept(found["ndcg"])
    cosine = measures_of(fit_of((new[0], None), (new[0], None), mapped))["cosine"]
    wanted = (mapped * new[0]).sum(1) / np.linalg.norm(mapped, axis=1)
    wanted /= np.linalg.norm(new[0], axis=1)
    assert cosine["mean"] == pytest.approx(wanted.mean(), abs=1e-6)
    assert cosine["p5"] == pytest.approx(np.quantile(wanted, 0.05), abs=1e-6)


def test_the_order_by_chance_is_the_seeds() -> None:
    made = fit_of((AXES, AXES), (AXES, AXES), -AXES, [[place] for place in range(40)])
    index = QuantisedVectors.store(StoredForm(), -AXES)
    orders = _order_documents(made, index, -AXES, np.arange(0, 40, 2), 3)
    assert orders["random"].tolist() == np.random.default_rng(3).permutation(40).tolist()


def test_ridges_are_tried_three_a_decade_and_each_is_shown() -> None:
    seen: list[tuple[int, int]] = []
    x, y = vectors(60, 6), vectors(60, 6, seed=1)
    own = np.arange(60) % 5
    found = fit_folds(x, y, own, "affine", progress=lambda *given: seen.append(given))
    assert seen == [(number, 28) for number in range(28)]
    assert folds.RIDGES[0] == pytest.approx(1e-6)
    assert folds.RIDGES[-1] == pytest.approx(1e3)
    assert folds.RIDGES[3] / folds.RIDGES[0] == pytest.approx(10)
    assert found.ridge in folds.RIDGES
    errors = {}
    for ridge in folds.RIDGES:
        fitted = fit_folds(x, y, own, "affine", ridge=ridge).out_of_fold
        errors[ridge] = float(((fitted - y) ** 2).sum())
    assert found.ridge == min(errors, key=lambda ridge: errors[ridge])
    low = fit_folds(x, y, own, "low_rank", rank=2)
    assert low.ridge in folds.RIDGES
    assert np.linalg.matrix_rank(low.fitted.matrix - np.eye(6), tol=1e-9) == 2
    assert fit_folds(x, y, own, "orthogonal").ridge is None

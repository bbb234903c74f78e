"""Measures of token matrices and drift: worked numbers, a plain numpy reference, and edge cases."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from emberge.encoding import TextEmbedder
from emberge_codiemb.geometry.token_geometry import (
    MEASURES,
    EntropyOf,
    TokenGeometry,
    linear_cka,
    shared_neighbours,
    singular_values,
)
from emberge_encoder import TextEncoder

from tests.plugins.codiemb.by_numpy import Matrix, by_numpy, cka_by_kernels


def measured(rows: Matrix, geometry: TokenGeometry | None = None) -> dict[str, float]:
    """The measures of one token matrix."""
    found = (geometry or TokenGeometry())(torch.as_tensor(np.asarray(rows))[None])
    return {name: float(values[0]) for name, values in found.items()}


# T-B11
WORKED = {
    "diagonal": (
        [[3, 0, 0, 0], [0, 2, 0, 0], [0, 0, 1, 0]],
        (0.0, 3, 3.0, 0.830471712),
    ),
    "tall": ([[1, 0], [1, 1], [0, 1]], (0.471404521, 2, 1.732050808, 0.562335145)),
}


@pytest.mark.parametrize("name", WORKED)
def test_worked_numbers(name: str) -> None:
    rows, expected = WORKED[name]
    found = measured(np.array(rows, float))
    # They are given to nine digits.
    assert [found[measure] for measure in MEASURES] == pytest.approx(expected, abs=5.1e-10)
    assert found == pytest.approx(by_numpy(np.array(rows, float)), abs=1e-9)


@pytest.mark.parametrize("shape", [(2, 384), (20, 384), (24, 24), (60, 32), (2, 2)])
@pytest.mark.parametrize("entropy_of", ["squares", "values"])
def test_random_matrices_are_measured_as_numpy_does(
    shape: tuple[int, int], entropy_of: EntropyOf
) -> None:
    made = np.random.default_rng(sum(shape))
    batch = made.standard_normal((5, *shape)) + 0.5
    found = TokenGeometry(entropy_of)(torch.from_numpy(batch))
    for place, x in enumerate(batch):
        expected = by_numpy(x, squares=entropy_of == "squares")
        ours = {name: float(values[place]) for name, values in found.items()}
        assert ours == pytest.approx(expected, rel=1e-9)


def test_small_singular_values_have_all_their_digits() -> None:
    made = np.random.default_rng(3)
    left, right = (np.linalg.qr(made.standard_normal((n, 12)))[0] for n in (12, 96))
    sigma = np.logspace(0, -10, 12)
    x = left @ np.diag(sigma) @ right.T
    found = singular_values(torch.from_numpy(x)[None])[0].numpy()
    # Eigenvalues of X Xᵀ would be wrong by about the square root of epsilon, 1.5e-8.
    assert np.abs(found - sigma).max() < 1e-14


def test_a_near_copy_of_a_token_counts_in_one_dtype_and_not_in_the_other() -> None:
    made = np.random.default_rng(0)
    x = made.standard_normal((12, 384))
    x[11] = x[10] + 1e-6 * made.standard_normal(384)
    single, double = (measured(x, TokenGeometry(tolerance=t)) for t in ("float32", "float64"))
    assert (single["rank"], double["rank"]) == (11, 12)
    assert single["condition_number"] == double["condition_number"] < 1 / np.finfo("float32").eps


@pytest.mark.parametrize("shape", [(3, 50), (50, 3)])
def test_the_rank_counts_values_above_the_epsilon_times_the_longer_side(
    shape: tuple[int, int],
) -> None:
    epsilon = float(np.finfo("float32").eps)
    x = np.zeros(shape)
    x[range(3), range(3)] = 2, 2 * 51 * epsilon, 2 * 49 * epsilon
    assert measured(x)["rank"] == by_numpy(x)["rank"] == 2


@pytest.mark.parametrize("tolerance", ["float32", "float64"])
def test_the_condition_number_of_two_equal_tokens_ends_at_the_epsilon(tolerance: str) -> None:
    geometry = TokenGeometry(tolerance=tolerance)  # type: ignore[arg-type]
    found = measured(np.ones((2, 8)), geometry)
    assert found["condition_number"] == pytest.approx(1 / np.finfo(tolerance).eps)
    assert found["rank"] == 1
    assert found["token_similarity"] == pytest.approx(1)
    assert found["svd_entropy"] == pytest.approx(0, abs=1e-12)


def test_a_zero_row_has_no_direction_and_is_left_out_of_the_similarity() -> None:
    x = np.array([[1.0, 0, 0], [0, 0, 0], [1, 1, 0]])
    found = measured(x)
    assert found == pytest.approx(by_numpy(x))
    assert found["token_similarity"] == pytest.approx(math.sqrt(0.5))


@pytest.mark.parametrize("x", [np.ones((1, 4)), np.zeros((3, 4)), np.eye(3, 4) * [1, 0, 0, 0]])
def test_fewer_than_two_tokens_with_a_direction_have_no_geometry(x: Matrix) -> None:
    assert all(math.isnan(value) for value in measured(x).values())


def test_one_token_with_a_direction_among_many_without_has_no_geometry() -> None:
    batch = np.zeros((64, 9, 33))
    batch[:, 4] = np.random.default_rng(2).standard_normal((64, 33))
    found = TokenGeometry()(torch.from_numpy(batch))
    assert all(np.isnan(values).all() for values in found.values())


def test_one_matrix_without_geometry_does_not_touch_its_neighbours() -> None:
    made = np.random.default_rng(1)
    batch = np.stack([np.zeros((4, 6)), made.standard_normal((4, 6))])
    found = TokenGeometry()(torch.from_numpy(batch))
    assert {n: float(v[1]) for n, v in found.items()} == pytest.approx(by_numpy(batch[1]))


def test_states_of_a_real_model_are_measured_as_numpy_does(minilm: Path) -> None:
    encoder = TextEncoder().load(minilm, device="cpu", dtype="float32")
    embedder = TextEmbedder(encoder)
    text = "the quick brown fox jumps over a lazy dog and runs away from the farm again"
    words = text.split()
    texts = [" ".join(words[start : start + size]) for start in (0, 3) for size in range(1, 13, 3)]
    texts.append(" ".join(words * 12))
    pieces = list(embedder.token_states(embedder.tokenise(texts)))
    assert sum(len(places) for places, _ in pieces) == len(texts)
    for _, states in pieces:
        found = TokenGeometry()(states)
        for place, x in enumerate(states.numpy()):
            ours = {name: float(values[place]) for name, values in found.items()}
            assert ours == pytest.approx(by_numpy(x), rel=1e-6)


# ── drift ───────────────────────────────────────────────────────────────────────────────────────


def vectors(seed: int, rows: int = 40, width: int = 6) -> Matrix:
    return np.random.default_rng(seed).standard_normal((rows, width))


def test_linear_cka_is_the_ratio_of_hsic() -> None:
    x, y = vectors(0), vectors(1, width=9)
    assert linear_cka(x, y) == pytest.approx(cka_by_kernels(x, y), rel=1e-12)
    assert 0 < linear_cka(x, y) < 1


def test_linear_cka_does_not_see_rotations_factors_and_shifts() -> None:
    x = vectors(0)
    turned = x @ np.linalg.qr(vectors(2, 6))[0] * 3 + 1
    assert linear_cka(x, turned) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_drift_of_short_numbers_is_computed_in_float64(dtype: str) -> None:
    x, y = (vectors(seed).astype(dtype) + np.ones(6, dtype) for seed in (0, 1))
    wide = x.astype(np.float64), y.astype(np.float64)
    assert linear_cka(x, y) == linear_cka(*wide)
    assert shared_neighbours(x, y, 5) == shared_neighbours(*wide, 5)


def test_neighbours_among_many_texts_are_the_nearest_ones() -> None:
    x, y = vectors(0, 700), vectors(1, 700)
    masks = []
    for unit in (e / np.linalg.norm(e, axis=1, keepdims=True) for e in (x, y)):
        scores = unit @ unit.T
        np.fill_diagonal(scores, -np.inf)
        masks.append(scores >= np.sort(scores, axis=1)[:, [-3]])
    assert shared_neighbours(x, y, 3) == (masks[0] & masks[1]).sum() / 2100


def test_a_zero_embedding_has_neighbours_and_no_cosine() -> None:
    x = vectors(0)
    x[3] = 0
    assert shared_neighbours(x, x, 5) == 1


def test_collapsed_embeddings_have_no_cka() -> None:
    assert math.isnan(linear_cka(vectors(0), np.full((40, 6), 0.3)))


@pytest.mark.parametrize("cells", [50, 4_000_000])
def test_shared_neighbours_are_those_that_sorting_finds(
    cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emberge.numerics.nearest._CELLS", cells)
    x, y = vectors(0), vectors(1)
    for count in (1, 5, 39):
        shares = []
        for row in range(len(x)):
            near = []
            for e in (x, y):
                unit = e / np.linalg.norm(e, axis=1, keepdims=True)
                order = [int(i) for i in np.argsort(-(unit @ unit[row])) if i != row]
                near.append(set(order[:count]))
            shares.append(len(near[0] & near[1]) / count)
        assert shared_neighbours(x, y, count) == pytest.approx(np.mean(shares), rel=1e-12)
    assert shared_neighbours(x, x, 5) == 1

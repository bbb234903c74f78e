"""Inner products of models: exact to float64's rounding, and the same with kernels and without."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from emberge.numerics import DecodedRows, DeltaProgram, Place, StoredRows, kernels
from torch import Tensor

from tests.support.compiled import require_kernels

# More than what is multiplied at once, and no multiple of the lanes.
SIZE = (1 << 14) + 333


def models_near_each_other() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(SIZE, generator=generator)
    return torch.stack([base + 1e-3 * torch.randn(SIZE, generator=generator) for _ in range(3)])


def relative_error(found: np.ndarray, wanted: Tensor) -> float:
    """The largest error of a product, by the lengths of both vectors."""
    lengths = wanted.diagonal().sqrt()
    return float(((torch.from_numpy(found) - wanted) / lengths / lengths[:, None]).abs().max())


def test_products_of_float32_numbers_are_added_in_float64() -> None:
    models = models_near_each_other()
    found = DeltaProgram(DecodedRows(models, None)).inner_products(deltas=False, differences=True)
    exact = models.double() @ models.double().T
    # The algebra from differences, which are rounded to float32, loses no more than that rounding.
    assert relative_error(found["products"], exact) < 1e-9
    distances = torch.cat([models[:1], models[1:] - models[0]]).double()
    assert relative_error(found["differences"], distances @ distances.T) < 1e-12
    assert np.array_equal(found["differences"], found["differences"].T)


def test_models_far_from_each_other_are_multiplied_themselves() -> None:
    models = torch.randn(4, SIZE, generator=torch.Generator().manual_seed(2))
    found = DeltaProgram(DecodedRows(models, None)).inner_products(deltas=False, differences=True)
    assert relative_error(found["products"], models.double() @ models.double().T) < 1e-13


@pytest.mark.parametrize("differences", [False, True])
def test_kernels_add_in_the_same_order(differences: bool) -> None:
    require_kernels()
    compiled = kernels()
    models = models_near_each_other()
    memory = models.reshape(-1).view(torch.uint8).numpy()
    places = [Place("float32", 4 * SIZE * m, m) for m in range(3)]
    stored = StoredRows.of(memory, places, None, (SIZE,), compiled, is_checked=True)
    found = DeltaProgram(stored).evaluate_models().gram(differences=differences)
    wanted = DeltaProgram(DecodedRows(models, None)).evaluate_models()
    assert (found == wanted.gram(differences=differences)).all()

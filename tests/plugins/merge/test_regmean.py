"""RegMean: the worked numbers, the regression that it solves, and Gram matrices from files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import CheckpointError, FileRef, Machine
from emberge.merging import MergeInput, Statistics
from emberge.model_folder import hash_model
from emberge_merge.methods.regmean import Regmean
from emberge_merge.methods.weighted_sums import Linear
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from tests.support.merge_in_memory import merge_state_dicts
from tests.support.merges import merge_models
from tests.support.tolerance import assert_combined, assert_near

# The worked example of T-E30.
D1 = torch.tensor([[0.4, -0.2, 0], [0.1, -0.6, 0.3]], dtype=torch.float64)
D2 = torch.tensor([[0.2, 0.3, -0.1], [-0.4, -0.25, 0.5]], dtype=torch.float64)
X1 = torch.tensor([[1.0, 0, 0], [0, 2, 0], [0, 0, 1]], dtype=torch.float64)
X2 = torch.tensor([[2.0, 0, 0], [0, 1, 1], [0, 0, 1]], dtype=torch.float64)
NAMES = ("a", "b")


def merged(
    models: list[Tensor],
    grams: list[Tensor],
    weights: tuple[float, ...] = (1.0, 1.0),
    how: Mapping[str, Any] | None = None,
    **options: Any,
) -> Tensor:
    told = {"w": dict(zip(NAMES, grams, strict=True))}
    settings = {"dtype": "float64", "names": NAMES, "statistics": told, **(how or {})}
    stage = Regmean(statistics=(), **options)
    return merge_state_dicts([{"w": m} for m in models], [stage], weights=weights, **settings)["w"]


@pytest.mark.parametrize(
    ("off_diagonal", "expected"),
    [
        (1.0, [[0.24, -0.135714, 0.078571], [-0.3, -0.535714, 0.528571]]),
        (0.9, [[0.24, -0.129175, 0.062086], [-0.3, -0.533298, 0.518323]]),
    ],
)
def test_regmean_gives_the_worked_numbers(
    off_diagonal: float, expected: list[list[float]]
) -> None:  # T-E30
    found = merged([D1, D2], [X1.mT @ X1, X2.mT @ X2], off_diagonal=off_diagonal)
    torch.testing.assert_close(found, torch.tensor(expected).double(), atol=1e-6, rtol=0)


def test_the_ridge_is_a_share_of_the_mean_square_on_every_input() -> None:
    """With inputs that one model saw alone: the other's share of them is its ridge."""
    first = torch.diag(torch.tensor([3.0, 0.0], dtype=torch.float64))
    second = torch.diag(torch.tensor([0.0, 1.0], dtype=torch.float64))
    models = [torch.tensor([[1.0, 1.0]]).double(), torch.tensor([[0.0, 0.0]]).double()]
    found = merged(models, [first, second])
    # Ridges of 1.5 and 0.5 millionths beside the squares of 3 and 1.
    own, other = 1.5e-6, 0.5e-6
    shares = [(3 + own) / (3 + own + other), own / (own + 1 + other)]
    expected = torch.tensor([shares], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_rows_of_tokens_come_from_the_models_that_saw_them() -> None:
    generator = torch.Generator().manual_seed(5)
    models = [torch.randn(4, 3, generator=generator, dtype=torch.float64) for _ in NAMES]
    counts = [torch.tensor(c, dtype=torch.float64) for c in ([5.0, 0, 3, 0], [0.0, 7, 1, 0])]
    found = merged(models, counts)
    a, b = models
    expected = torch.stack([a[0], b[1], (3 * a[2] + b[2]) / 4, (a[3] + b[3]) / 2])
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    weighted = merged(models, counts, weights=(1.0, 3.0))
    torch.testing.assert_close(
        weighted[2:], torch.stack([(a[2] + b[2]) / 2, (a[3] + 3 * b[3]) / 4])
    )


@settings(max_examples=25, deadline=None, database=None)
@given(
    seed=st.integers(0, 1000),
    weights=st.lists(st.floats(0.1, 5), min_size=2, max_size=2),
    off_diagonal=st.floats(0, 1),
)
def test_equal_grams_are_the_weighted_mean(
    seed: int, weights: list[float], off_diagonal: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    models = [torch.randn(3, 5, generator=generator, dtype=torch.float64) for _ in NAMES]
    linear = merge_state_dicts(
        [{"w": m} for m in models], [Linear()], weights=weights, dtype="float64"
    )["w"]
    inputs = torch.randn(20, 5, generator=generator, dtype=torch.float64)
    for gram in (torch.eye(5, dtype=torch.float64), inputs.mT @ inputs):
        found = merged(models, [gram, gram], tuple(weights), off_diagonal=off_diagonal)
        torch.testing.assert_close(found, linear, atol=1e-8, rtol=0)
    same = merged([models[0]] * 2, [inputs.mT @ inputs, torch.eye(5)], tuple(weights))
    assert torch.equal(same, models[0])


def test_tensors_without_a_gram_matrix_are_averaged() -> None:
    models = [{"w": D1, "b": D1[0], "n": D1[0, 0]}, {"w": D2, "b": D2[0], "n": D2[0, 0]}]
    told = {"w": {"a": X1.mT @ X1}}  # of the other model nothing is known
    found = merge_state_dicts(
        models, [Regmean(statistics=())], names=NAMES, dtype="float64", statistics=told
    )
    for name in ("w", "b", "n"):
        torch.testing.assert_close(found[name], (models[0][name] + models[1][name]) / 2)


def test_layers_are_merged_whole_and_the_rest_by_rows() -> None:
    generator = torch.Generator().manual_seed(6)
    shapes = {"embeddings.weight": (300, 8), "layers.0.w": (40, 8), "layers.0.b": (40,)}
    models = [{n: torch.randn(s, generator=generator) for n, s in shapes.items()} for _ in NAMES]
    inputs = [torch.randn(30, 8, generator=generator) for _ in NAMES]
    told = {
        "layers.0.w": {n: x.mT @ x for n, x in zip(NAMES, inputs, strict=True)},
        "embeddings.weight": {n: torch.rand(300, generator=generator) for n in NAMES},
    }
    rows: list[tuple[str, int]] = []

    class Watching(Regmean):
        def merge(self, block: Any, stats: Any) -> Tensor:
            rows.append((block.name, block.tensors.shape[1]))
            return super().merge(block, stats)

    how = {"names": NAMES, "statistics": told}
    stage = Watching(statistics=())
    cut = merge_state_dicts(models, [stage], block=80, workers=2, **how)
    assert ("layers.0.w", 40) in rows
    assert ("embeddings.weight", 10) in rows
    whole = merge_state_dicts(models, [stage], **how)
    assert all(torch.equal(cut[n], whole[n]) for n in shapes)


def test_square_layers_read_their_whole_gram() -> None:
    generator = torch.Generator().manual_seed(7)
    models = [torch.randn(6, 6, generator=generator) for _ in NAMES]
    inputs = [torch.randn(30, 6, generator=generator) for _ in NAMES]
    grams = [x.mT @ x for x in inputs]
    found = merged(models, grams, how={"block": 1, "dtype": "float32"})
    expected = merged([m.double() for m in models], [g.double() for g in grams])
    assert_near(found, expected, addends=2)  # computed in float64, and rounded


def test_broken_grams_are_refused() -> None:
    good = X1.mT @ X1
    bad = good.clone()
    bad[0, 1] = float("nan")
    with pytest.raises(CheckpointError, match="w: the Gram matrix of 'b' holds NaN"):
        merged([D1, D2], [good, bad])
    with pytest.raises(CheckpointError, match="not negative"):
        merged([D1, D2], [good, good], weights=(2.0, -1.0))


# ── files ───────────────────────────────────────────────────────────────────────────────────────

LAYER = "encoder.layer.1.attention.self.key.weight"


def file(folder: Path, root: Path, seed: int, size: int = 32) -> FileRef:
    inputs = torch.randn(64, size, generator=torch.Generator().manual_seed(seed))
    values = {LAYER: {"m": inputs.mT @ inputs}}
    place = root / f"measured{seed}"
    place.mkdir()
    models = {"m": hash_model(folder)}
    Statistics(values, models=models, measure="gram").write(place)
    return FileRef(str(place))


def test_grams_come_from_files(berts: list[Path], tmp_path: Path) -> None:
    pair = berts[:2]
    told = tuple(file(f, tmp_path, i) for i, f in enumerate(pair))
    inputs = [MergeInput(f.name, f, fingerprint=hash_model(f)) for f in pair]
    merge_models(inputs, strategy=[Regmean(statistics=told)], out=tmp_path / "out")
    found, *states = (load_file(f / "model.safetensors") for f in (tmp_path / "out", *pair))
    data = [torch.randn(64, 32, generator=torch.Generator().manual_seed(i)) for i in (0, 1)]
    expected = merged([s[LAYER].double() for s in states], [(x.mT @ x).double() for x in data])
    assert_near(found[LAYER], expected, addends=2)
    for name, tensor in found.items():
        if name != LAYER and tensor.is_floating_point():
            assert_combined(tensor, [states[0][name], states[1][name]], [0.5, 0.5])


def test_a_gram_of_another_shape_and_one_too_few_are_refused(
    berts: list[Path], tmp_path: Path
) -> None:
    inputs = tuple(MergeInput(f.name, f, fingerprint=hash_model(f)) for f in berts[:2])
    first, second = file(berts[0], tmp_path, 2), file(berts[1], tmp_path, 3, size=16)
    for files, said in (
        ((first, second), r"the Gram matrix of 'sibling2' has shape \[16, 16\]"),
        ((first,), "nothing was measured of 'sibling2'"),
    ):
        with pytest.raises(CheckpointError, match=said):
            merge_models(inputs, strategy=[Regmean(statistics=files)], out=tmp_path / "out")


def test_grams_count_against_the_memory(berts: list[Path], tmp_path: Path) -> None:
    pair = berts[:2]
    told = tuple(file(f, tmp_path, i) for i, f in enumerate(pair))
    inputs = [MergeInput(f.name, f, fingerprint=hash_model(f)) for f in pair]
    # The layer's stacks alone take 32 KiB, and two Gram matrices with what is computed of them 24 KiB.
    with pytest.raises(CheckpointError, match=rf"{LAYER}: needs"):
        merge_models(
            inputs,
            strategy=[Regmean(statistics=told)],
            out=tmp_path / "out",
            machine=Machine(memory=40 << 10),
        )

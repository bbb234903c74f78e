"""What is one vector: rows, columns, tensors, layers or the model, each equal to merging it by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from emberge import PerTensor, Stage
from emberge.merging import merge_state_dicts
from emberge.testing import check_strategy
from torch import Tensor

from tests.support.chains import EVERYTHING, chain, merge

SHAPES = {
    "embeddings.weight": (11, 6),
    "encoder.layer.0.attention.weight": (6, 6),
    "encoder.layer.0.attention.bias": (6,),
    "encoder.layer.0.conv.weight": (4, 3, 2),
    "encoder.layer.0.scale": (),
    "encoder.layer.1.attention.weight": (6, 6),
    "encoder.layer.1.attention.bias": (6,),
}
State = dict[str, Tensor]

# Name: (options, models, with a base)
METHODS: dict[str, tuple[str, dict[str, Any], int, bool]] = {
    "slerp": ("slerp", {"t": 0.3}, 2, False),
    "nuslerp": ("nuslerp", {}, 2, False),
    "nuslerp of deltas": ("nuslerp", {}, 2, True),
    "multi_slerp": ("multi_slerp", {}, 3, False),
    "multi_slerp projected": ("multi_slerp", {"mode": "projected"}, 3, False),
    "multi_slerp karcher": ("multi_slerp", {"mode": "karcher"}, 3, False),
    "multi_slerp of deltas": ("multi_slerp", {"space": "deltas"}, 3, True),
    "karcher": ("karcher", {}, 3, False),
    "model_stock": ("model_stock", {}, 3, True),
    "model_stock raw": ("model_stock", {"clamp": False}, 3, True),
}
WEIGHTS = (0.5, 0.3, 0.2)


def states(count: int, noise: float = 0.5) -> list[State]:
    """A base and siblings whose changes have something in common."""
    torch.manual_seed(3)
    base = {n: torch.randn(s, dtype=torch.float64) for n, s in SHAPES.items()}
    shared = {n: noise * torch.randn_like(t) for n, t in base.items()}
    return [
        base,
        *(
            {n: t + shared[n] + noise * torch.randn_like(t) for n, t in base.items()}
            for _ in range(count)
        ),
    ]


def joined(state: State, names: Sequence[str]) -> State:
    return {"w": torch.cat([state[n].reshape(-1) for n in names])}


def apart(merged: Tensor, names: Sequence[str]) -> State:
    parts = merged.split([torch.Size(SHAPES[n]).numel() for n in names])
    return {n: part.reshape(SHAPES[n]) for n, part in zip(names, parts, strict=True)}


def by_hand(method: str, groups: Sequence[Sequence[str]]) -> State:
    """Every group of tensors as one long vector, merged as a tensor."""
    name, options, count, based = METHODS[method]
    base, *models = states(count)
    merged: State = {}
    for names in groups:
        found = merge(
            chain(name, **options),
            [joined(m, names) for m in models],
            joined(base, names) if based else None,
            weights=WEIGHTS[:count],
        )
        merged |= apart(found["w"], names)
    return merged


def at(method: str, granularity: str, rows: int = EVERYTHING) -> State:
    name, options, count, based = METHODS[method]
    base, *models = states(count)
    links = chain(name, granularity=granularity, **options)
    return merge(links, models, base if based else None, weights=WEIGHTS[:count], rows=rows)


def close(found: State, expected: State) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-10, atol=1e-12, msg=name)


LAYERS = [
    ["embeddings.weight"],
    [n for n in SHAPES if ".0." in n],
    [n for n in SHAPES if ".1." in n],
]


@pytest.mark.parametrize("rows", [1, EVERYTHING], ids=["one row", "everything"])
@pytest.mark.parametrize("method", METHODS)
def test_a_layer_is_its_tensors_laid_end_to_end(method: str, rows: int) -> None:
    close(at(method, "layer", rows), by_hand(method, LAYERS))


@pytest.mark.parametrize("rows", [1, EVERYTHING], ids=["one row", "everything"])
@pytest.mark.parametrize("method", METHODS)
def test_a_model_is_all_its_tensors_laid_end_to_end(method: str, rows: int) -> None:
    close(at(method, "model", rows), by_hand(method, [list(SHAPES)]))


@pytest.mark.parametrize("method", METHODS)
def test_a_tensor_is_one_vector_by_default(method: str) -> None:
    expected = by_hand(method, [[n] for n in SHAPES])
    close(at(method, "tensor"), expected)
    name, options, count, based = METHODS[method]
    base, *models = states(count)
    found = merge(chain(name, **options), models, base if based else None, weights=WEIGHTS[:count])
    close(found, expected)


@pytest.mark.parametrize("rows", [1, EVERYTHING], ids=["one row", "everything"])
@pytest.mark.parametrize("method", METHODS)
def test_rows_are_merged_one_by_one(method: str, rows: int) -> None:
    name, options, count, based = METHODS[method]
    base, *models = states(count)
    expected: State = {}
    for tensor, shape in SHAPES.items():

        def row(state: State, i: int, tensor: str = tensor) -> State:
            return {"w": state[tensor][i].reshape(-1) if state[tensor].dim() > 1 else state[tensor]}

        merged = [
            merge(
                chain(name, **options),
                [row(m, i) for m in models],
                row(base, i) if based else None,
                weights=WEIGHTS[:count],
            )["w"]
            for i in range(shape[0] if len(shape) > 1 else 1)
        ]
        expected[tensor] = torch.cat([m.reshape(-1) for m in merged]).reshape(shape)
    close(at(method, "row", rows), expected)


@pytest.mark.parametrize("rows", [1, EVERYTHING], ids=["one row", "everything"])
@pytest.mark.parametrize("method", METHODS)
def test_columns_are_merged_one_by_one(method: str, rows: int) -> None:
    name, options, count, based = METHODS[method]
    base, *models = states(count)
    expected: State = {}
    for tensor, shape in SHAPES.items():

        def turned(state: State, tensor: str = tensor) -> State:
            found = state[tensor]
            return {"w": found.flatten(1).T.contiguous() if found.dim() > 1 else found}

        merged = merge(
            chain(name, granularity="row", **options),
            [turned(m) for m in models],
            turned(base) if based else None,
            weights=WEIGHTS[:count],
        )["w"]
        expected[tensor] = merged.T.reshape(shape) if len(shape) > 1 else merged
    close(at(method, "column", rows), expected)


def test_the_way_may_differ_by_tensor_though_the_angle_is_the_layers() -> None:
    _, first, second = states(2)
    t = PerTensor([{"filter": "bias", "value": 0.0}, {"value": 1.0}])
    found = merge(chain("slerp", t=t, granularity="layer"), [first, second])
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, (first if "bias" in name else second)[name])


@pytest.mark.parametrize("granularity", ["row", "column", "layer", "model"])
@pytest.mark.parametrize("name", ["slerp", "nuslerp", "multi_slerp", "karcher", "model_stock"])
def test_granularities_keep_the_laws(name: str, granularity: str) -> None:
    check_strategy(
        chain(name, granularity=granularity),
        one_hot=name not in ("slerp", "model_stock"),
    )


@pytest.mark.parametrize("name", ["nuslerp", "multi_slerp", "model_stock"])
def test_a_row_has_the_same_bytes_in_any_block(name: str) -> None:
    """However wide the rows and many the blocks: a sum over a row is its own."""
    torch.manual_seed(5)
    links: Sequence[Stage] = chain(name, granularity="row")
    for width in (1, 7, 1000, 5003):
        base = {"w": torch.randn(40, width)}
        models = [{"w": base["w"] + 0.1 * torch.randn(40, width)} for _ in range(2)]
        whole = merge_state_dicts(models, links, base)["w"]
        for block in (1, 3 * width, 17 * width):
            cut = merge_state_dicts(models, links, base, block=block, workers=2)["w"]
            assert torch.equal(cut, whole)

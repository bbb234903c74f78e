"""Tolerances that follow from the arithmetic, for numbers that another machine adds in another order.

Vector units, threads, chunks and ranks group the same addends differently, and a fused multiply-add rounds
once where two instructions round twice. Where the order is fixed, bytes are compared. Elsewhere a test takes
one of four bounds from here, so that none is fitted to the machine on which it was written. `u` is half the
epsilon of a dtype: 2^-24 in float32, 2^-53 in float64.

* A short sum. Of n addends, products too, in any order: |error| <= γ(n) Σ|addend|, γ(n) = n u / (1 - n u)
  (Higham, Accuracy and Stability of Numerical Algorithms, 2002, sections 3.1 and 4.2). Cancellation is in
  the ratio of Σ|addend| to |Σ addend|: `assert_combined` and `near` are given the addends, not the result.
* A long sum. Roundings are as often up as down, and of n of them √n remain: |error| <= λ √n u Σ|addend|, save
  for a chance of 2 exp(-λ²/2) (Higham and Mary, 2019, SIAM J. Sci. Comput. 41); with λ = 6 that is 3e-8.
* A pass through a transformer is a chain of such sums between norms. A norm brings its input back to size 1
  and a block adds to it, so an error is handed on at about its size relative to the states: a relative change
  of all weights, drawn at random, moves the states of the models here two to five times as far. `of_pass` is
  the bound of one sum as long as the chain, by the largest state.
* Everything in float64. Whoever claims that float32 has any correct digit claims that terms times condition
  stay below 2^24. In float64 the same computation is then right to 2^24 · 2^-53 = 2^-29, two parts in a
  milliard: `EXACT`. Of gradients that is relative to the largest, as a small one is a sum of large addends.

An optimizer turns gradients into steps. AdamW's is lr · m / (√v + ε): an error δ of every gradient moves m
and √v by at most δ each, and m / √v is at most 4 at the usual betas, so a step by at most 5 lr δ / ε, and N
of them N times that (`of_adamw`). In float32, where δ is about 1e-7, the default ε of 1e-8 promises nothing,
which is why trainings are compared in float64.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

EXACT = 2.0**-29
DEVIATIONS = 6.0


def unit(dtype: torch.dtype = torch.float32) -> float:
    """Return the largest relative error of one rounding to a dtype."""
    return torch.finfo(dtype).eps / 2


def gamma(addends: int, dtype: torch.dtype = torch.float32) -> float:
    """Return what a sum of so many addends may be off, by the sum of their magnitudes."""
    return addends * unit(dtype) / (1 - addends * unit(dtype))


def likely(addends: int, dtype: torch.dtype = torch.float32) -> float:
    """Return what a long sum is off at most, but for a chance of 3e-8, by the sum of the magnitudes."""
    return min(gamma(addends, dtype), DEVIATIONS * math.sqrt(addends) * unit(dtype))


def near(expected: Any, addends: int, *, size: float = 0.0) -> Any:
    """Return what compares equal to another float32 evaluation of sums of so many addends.

    `size` is the sum of the addends' magnitudes, where that is more than the result's: they cancel.
    """
    allowed = 2 * likely(addends)
    return pytest.approx(expected, rel=allowed, abs=allowed * size)


def exactly(expected: Any, *, size: float = 0.0) -> Any:
    """Return what compares equal to another float64 evaluation of numbers of about a `size`."""
    return pytest.approx(expected, rel=EXACT, abs=EXACT * size)


def assert_combined(
    found: Tensor,
    tensors: Sequence[Tensor],
    weights: Sequence[float | Tensor],
    *,
    roundings: int = 3,
) -> None:
    """Hold a tensor to the weighted sum of others, element by element, as float32 or better computes it.

    A change from a base is written out: `[base, model, base]` with `[1, w, -w]`. Each addend is rounded with
    every addition, and three times more or as often as told: as weight, as product, and by a division. The
    result is rounded once more to its dtype.
    """
    expected = torch.zeros(found.shape, dtype=torch.float64)
    size = torch.zeros_like(expected)
    for tensor, weight in zip(tensors, weights, strict=True):
        expected += weight * tensor.double()
        size += abs(weight) * tensor.double().abs()
    allowed = gamma(len(tensors) + roundings) * size
    if found.dtype != torch.float64:
        allowed += unit(found.dtype) * expected.abs() + torch.finfo(found.dtype).tiny
    _hold(found.double() - expected, allowed)


def assert_near(found: Tensor, expected: Tensor, addends: int, *, name: str = "") -> None:
    """Hold a tensor to another evaluation of sums of so many addends, by the largest number in it."""
    assert found.shape == expected.shape, f"{name} has the shape {list(found.shape)}"
    size = expected.double().abs().max() if expected.numel() else torch.zeros(())
    _hold(found.double() - expected.double(), 2 * likely(addends) * size, name)


def assert_exact(
    found: Mapping[str, Tensor] | Tensor, expected: Mapping[str, Tensor] | Tensor
) -> None:
    """Hold float64 tensors to others, relative to the largest number among all of them."""
    ours = found if isinstance(found, Mapping) else {"": found}
    theirs = expected if isinstance(expected, Mapping) else {"": expected}
    assert ours.keys() == theirs.keys()
    size = max(float(t.abs().max()) for t in theirs.values() if t.numel())
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype == torch.float64, f"{name} is {ours[name].dtype}"
        _hold(ours[name] - tensor, torch.tensor(EXACT * size), name)


def of_pass(folder: Path, tokens: int = 64) -> float:
    """Return what two float32 passes through a model's transformer may differ, by the largest number in it.

    The chain is of what each block adds up: queries, scores, values, output, two matrices of the feed-forward
    part, and mean and variance of two norms; at the end the tokens and the length of the vector.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config", config)
    wide = config.get("hidden_size") or config.get("n_embd") or config["d_model"]
    inner = config.get("intermediate_size") or 4 * wide
    blocks = config.get("num_hidden_layers") or config.get("n_layer") or config["num_layers"]
    heads = config.get("num_attention_heads") or config.get("n_head") or config["num_heads"]
    head = config.get("head_dim") or wide // heads
    block = wide + head + 2 * tokens + wide + wide + inner + 4 * wide
    return 2 * likely(blocks * block + 2 * wide + tokens + wide)


def assert_same_pass(found: Any, expected: Any, folder: Path, *, tokens: int = 64) -> None:
    """Hold embeddings or hidden states to those of another float32 pass through the model in `folder`."""
    ours, theirs = (torch.as_tensor(np.asarray(v)).double() for v in (found, expected))
    assert ours.shape == theirs.shape
    _hold(ours - theirs, of_pass(folder, tokens) * theirs.abs().max())


def of_adamw(learning_rate: float, steps: int, epsilon: float, gradient_error: float) -> float:
    """Return how far so many steps may lead apart when every gradient is off by so much."""
    return 5 * learning_rate * steps * gradient_error / epsilon


def _hold(off: Tensor, allowed: Tensor, name: str = "") -> None:
    over = off.abs() - allowed
    if bool((over > 0).any()) or not bool(off.isfinite().all()):
        worst = int(over.nan_to_num(math.inf).argmax())
        most = float(allowed.expand_as(off).flatten()[worst])
        raise AssertionError(
            f"{name or 'number'} {worst} is off by {float(off.flatten()[worst]):.2e}, "
            f"where rounding explains {most:.2e}"
        )

"""A comparison of every kernel with the torch code that it stands in for, on one small block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emberge.numerics import lanes
from emberge.numerics.consensus import elect, least_divisor
from emberge.numerics.gram_products import less_first
from emberge.numerics.links import Divided, Dropped, Kept, Limit, Link, Scaled, Selected
from emberge.numerics.noise import uniform
from emberge.numerics.programs import Program
from emberge.numerics.ranked_drop import chances_of, drop_ranked
from emberge.numerics.stored_rows import ALIGNED, TOO_LARGE, Place, StoredRows, words_are_usable

__all__ = ["first_difference"]

# More than a chunk, and no multiple of a vector.
_SIZE, _MODELS, _WIDTH = 2048 + 37, 3, 260
_WEIGHTS = [0.7, 0.25, 0.4]


def first_difference(kernels: Any) -> str:
    """Return the name of a kernel whose bytes differ from torch's; "" if none do."""
    stored = _rows(kernels)
    deltas = stored.decode() - stored.decode_base()
    for name, found, wanted in _pairs(kernels, stored, deltas):
        if not torch.equal(found.view(torch.uint8), wanted.contiguous().view(torch.uint8)):
            return name
    return ""


def _rows(kernels: Any) -> StoredRows:
    """Return small changes of a base, with ties and zeros: the same numbers everywhere."""
    count = torch.arange(_SIZE, dtype=torch.float64)
    base = (0.05 * torch.sin(count)).bfloat16()
    models = [
        (base.double() + 0.002 * torch.sin((3 + m) * count).round(decimals=1)).bfloat16()
        for m in range(_MODELS)
    ]
    step = -(-2 * _SIZE // ALIGNED) * ALIGNED
    memory = torch.zeros(step * (_MODELS + 1), dtype=torch.uint8)
    for m, values in enumerate([*models, base]):
        memory[m * step : m * step + 2 * _SIZE] = values.view(torch.uint8)
    places = [Place("bfloat16", m * step) for m in range(_MODELS + 1)]
    return StoredRows(memory, places[:-1], places[-1], (_SIZE,), kernels)


def _pairs(
    kernels: Any, stored: StoredRows, deltas: Tensor
) -> Iterator[tuple[str, Tensor, Tensor]]:
    base = stored.decode_base()

    def program(links: Sequence[Link] = ()) -> Program:
        found = Program.of(stored, links, None, 0, deltas=True)
        assert found is not None
        return found

    plain = program()
    yield "combine", plain.combine(_WEIGHTS, add_base=True), _combined(deltas, base)
    least = least_divisor(_WEIGHTS)
    wanted = elect(deltas, base, _WEIGHTS, _WEIGHTS, normalize=True, scale=0.9)
    yield "elect", plain.elect(_WEIGHTS, _WEIGHTS, least, normalize=True, scale=0.9), wanted
    yield "sums", plain.sums(squares=False), lanes.sums(deltas, squares=False)
    yield "decode", plain.decode(), deltas
    yield "decode", plain.decode(less_first=True), less_first(deltas)
    yield from _ranked(kernels, plain, deltas)
    magnitude = deltas[0].abs().sort().values[_SIZE // 2].view(torch.int32)
    limit = Limit(int(magnitude), 0, 3)
    some: list[Link] = [
        Kept([limit] * _MODELS),
        Dropped(_WEIGHTS, [(m,) for m in range(_MODELS)]),
        Scaled(_WEIGHTS),
        Divided(_WEIGHTS),
        Selected(Limit(int(magnitude) // 2), _MODELS),
    ]
    for link in some:
        yield type(link).__name__, program([link]).decode(), link.apply(deltas.clone(), 0)
    rounded = torch.empty(_SIZE, dtype=torch.int16)
    kernels.encode(deltas[0].numpy(), rounded.numpy().view("uint16"))
    yield "encode", rounded, deltas[0].bfloat16()


def _ranked(kernels: Any, plain: Program, deltas: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    lines, keys = [(0.3, 0.4 / _WIDTH)] * _MODELS, [(m,) for m in range(_MODELS)]
    rows = deltas[:, : _SIZE // _WIDTH * _WIDTH].contiguous()
    dropped = rows.clone()
    drop_ranked(dropped, lines, _WIDTH, 0, keys, kernels)
    mask = uniform(rows, 0, keys).lt_(chances_of(rows, lines, _WIDTH))
    yield "drop_ranked", dropped, mask.mul_(rows)
    patterns = np.abs(deltas.numpy()).view(np.int32)
    low, high = np.sort(patterns[1])[[_SIZE // 4, _SIZE // 2]].tolist()
    bracket, frequent = np.array([[low, high]]), np.array([[low, -1]])
    counts, values, homes, ties = plain.tally([1], bracket, frequent, _WIDTH)
    inside = (patterns[1] >= low) & (patterns[1] <= high)
    places = np.flatnonzero(inside & (patterns[1] != low))
    wanted = [(patterns[1] > high).sum(), inside.sum(), (patterns[1] > 0).sum(), len(places)]
    at_rows = np.flatnonzero(patterns[1] == low) // _WIDTH
    found = [*counts[0], *values[0, : len(places)], *homes[0, : len(places)], *ties[0, 0]]
    by_row = np.bincount(at_rows, minlength=ties.shape[2])
    wanted += [*patterns[1][places], *(places // _WIDTH), *by_row]
    yield "tally", torch.tensor(np.array(found)), torch.tensor(np.array(wanted))
    for words in (torch.int16, torch.int32):
        some = deltas[0].bfloat16() if words == torch.int16 else deltas[0]
        large = torch.full_like(some, TOO_LARGE)
        usable = [words_are_usable(values, kernels) for values in (some, some / 0, large)]
        yield "largest", torch.tensor(usable), torch.tensor([True, False, False])


def _combined(deltas: Tensor, base: Tensor) -> Tensor:
    total = deltas[0] * _WEIGHTS[0]
    for weight, delta in zip(_WEIGHTS[1:], deltas[1:], strict=True):
        total.add_(delta, alpha=weight)
    return total.add_(base)

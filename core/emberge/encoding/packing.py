"""Packed rows: several texts in one row, and a check that they do not influence each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emberge.contracts import TokenisedText, TokenPredictor
from emberge.encoding.chunks import find_device

# Texts of the probe by row: as a text's neighbours, with padding, and alone.
_PROBE_LENGTHS = ((5, 3, 7), (6, 4), (8,))


def pack_rows(lengths: Sequence[int] | NDArray[np.int64], length: int) -> list[NDArray[np.int64]]:
    """Pack texts into rows of at most `length` tokens by first-fit, longest text first.

    A longer text is a row of its own. Ties keep their order.
    """
    sizes = np.asarray(lengths, np.int64)
    rows: list[list[int]] = []
    free_tokens = np.zeros(len(sizes), np.int64)
    for text in np.argsort(-sizes, kind="stable"):
        fitting_rows = np.flatnonzero(free_tokens[: len(rows)] >= sizes[text])
        row = int(fitting_rows[0]) if len(fitting_rows) else len(rows)
        if row == len(rows):
            rows.append([])
            free_tokens[row] = length
        rows[row].append(int(text))
        free_tokens[row] -= sizes[text]
    return [np.asarray(row, np.int64) for row in rows]


def find_packing_problem(encoder: TokenPredictor) -> str:
    """Return the difference between a few texts' states if packed and if single, in words; "" if none."""
    model_name = type(getattr(encoder.module, "trunk", encoder.module)).__name__
    training = encoder.module.training
    encoder.module.eval()
    try:
        distance = _measure_distance(encoder)
    # What a model does that takes no positions, or other shapes than it expects.
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        line = (str(error).strip().splitlines() or [repr(error)])[0]
        return f"{model_name} cannot compute packed texts: {line}; take packing out"
    finally:
        encoder.module.train(training)
    if distance <= 1:
        return ""
    return (
        f"{model_name} computes texts of a packed row otherwise than single ones, as if they saw each other; "
        "take packing out"
    )


def _measure_distance(encoder: TokenPredictor) -> float:
    """Return the distance between packed and single texts' states, relative to the allowed rounding error."""
    token_ids = iter(np.arange(1, 1 + sum(map(sum, _PROBE_LENGTHS))) % encoder.vocabulary)
    rows = [
        [TokenisedText([int(next(token_ids)) for _ in range(size)]) for size in sizes]
        for sizes in _PROBE_LENGTHS
    ]
    with torch.no_grad():
        packed_batch = _compute_states(encoder, encoder.pack(rows))
        distance = 0.0
        for row, texts in enumerate(rows):
            start = 0
            for text in texts:
                single_states = _compute_states(encoder, encoder.collate([text]))[0]
                packed_states = packed_batch[row, start : start + len(text.ids)]
                start += len(text.ids)
                rounding_error = math.sqrt(torch.finfo(single_states.dtype).eps) * float(
                    single_states.abs().max()
                )
                distance = max(
                    distance,
                    float((packed_states - single_states).abs().max()) / max(rounding_error, 1e-30),
                )
    return distance


def _compute_states(encoder: TokenPredictor, features: object) -> Tensor:
    device = find_device(encoder)
    assert isinstance(features, dict)
    return encoder.states({name: value.to(device) for name, value in features.items()})

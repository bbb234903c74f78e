"""A comparison of the compiled kernels with the torch code that they replace."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emberge.numerics.delta_changes import (
    DeltaChange,
    DivideDeltas,
    DropAtRandom,
    KeepLargest,
    KeepVaried,
    Limit,
    ScaleDeltas,
    TakeVariance,
)
from emberge.numerics.delta_program import DecodedRows, DeltaProgram
from emberge.numerics.evaluations import Bracket, Evaluation, as_tensor
from emberge.numerics.stored_rows import (
    ALIGNED,
    TOO_LARGE,
    Place,
    StoredRows,
    encode,
    words_are_usable,
)

# More than a chunk, and no multiple of a vector or of the width.
_SIZE, _MODELS, _WIDTH = 2048 + 37, 3, 260
_WEIGHTS = [0.7, 0.25, 0.4]


def first_difference(compiled: Any) -> str:
    """Return the name of a kernel whose bytes differ from torch's on one small block; "" if none do."""
    stored = _build_rows(compiled)
    stored_lines = dataclasses.replace(stored, shape=(_SIZE // _WIDTH, _WIDTH))
    results = itertools.chain(
        _compare_evaluations(*_build_programs(stored)),
        _compare_changes(*_build_programs(stored)),
        _compare_ranked_drops(*_build_programs(stored_lines)),
        _compare_conversions(stored),
    )
    different = (name for name, found, wanted in results if not _have_same_bytes(found, wanted))
    return next(different, "")


def _build_rows(compiled: Any) -> StoredRows:
    """Return test rows close to a base, with ties and zeros, equal on every machine."""
    count = torch.arange(_SIZE, dtype=torch.float64)
    base = (0.05 * torch.sin(count)).bfloat16()
    models = [
        (base.double() + 0.002 * torch.sin((3 + m) * count).round(decimals=1)).bfloat16()
        for m in range(_MODELS)
    ]
    step = -(-2 * _SIZE // ALIGNED) * ALIGNED
    memory: np.ndarray = np.zeros(step * (_MODELS + 1), np.uint8)
    for m, values in enumerate([*models, base]):
        memory[m * step : m * step + 2 * _SIZE] = values.view(torch.uint8).numpy()
    places = [Place("bfloat16", m * step, m) for m in range(_MODELS + 1)]
    return StoredRows.of(memory, places[:-1], places[-1], (_SIZE,), compiled, is_checked=True)


def _build_programs(stored: StoredRows) -> tuple[DeltaProgram, DeltaProgram]:
    """Return two programs of the same rows, for the kernels and for torch."""
    decoded = DecodedRows(stored.decode(), stored.decode_base())
    return DeltaProgram(stored), DeltaProgram(decoded)


def _have_same_bytes(found: Tensor, expected: Tensor) -> bool:
    return torch.equal(found.view(torch.uint8), expected.contiguous().view(torch.uint8))


Compared = Iterator[tuple[str, Tensor, Tensor]]
"""Names of kernels, each with its result and torch's."""


def _compare_evaluations(by_kernels: DeltaProgram, by_torch: DeltaProgram) -> Compared:
    patterns = by_torch.deltas[1].abs().sort().values.view(torch.int32)
    low, high = int(patterns[_SIZE // 4]), int(patterns[_SIZE // 2])

    def results(evaluation: Evaluation) -> dict[str, Tensor]:
        bracket_count = evaluation.count([Bracket(1, low, high, (low,))], _WIDTH)[0]
        elected = evaluation.elect(_WEIGHTS, _WEIGHTS, normalize=True, scale=0.9)
        rounded = evaluation.combine(_WEIGHTS, add_base=True, dtype="bfloat16")
        return {
            "combine": as_tensor(evaluation.combine(_WEIGHTS, add_base=True)),
            "combine, rounded": as_tensor(rounded).bfloat16(),
            "elect": as_tensor(elected),
            "sums": torch.from_numpy(evaluation.sums(squares=False)),
            "gram": torch.from_numpy(evaluation.gram(differences=True)),
            "decode": torch.cat(
                [as_tensor(evaluation.values()), as_tensor(evaluation.differences())]
            ),
            "count_near_limits": torch.tensor(
                np.concatenate([np.ravel(part) for part in bracket_count])
            ),
        }

    expected = results(by_torch.evaluate_deltas())
    for name, result in results(by_kernels.evaluate_deltas()).items():
        yield name, result, expected[name]


def _compare_changes(by_kernels: DeltaProgram, by_torch: DeltaProgram) -> Compared:
    middle = int(by_torch.deltas[0].abs().sort().values[_SIZE // 2].view(torch.int32))
    changes: list[DeltaChange] = [
        KeepLargest([Limit(middle, 0, 3)] * _MODELS),
        DropAtRandom(_WEIGHTS, [(m,) for m in range(_MODELS)]),
        ScaleDeltas(_WEIGHTS),
        DivideDeltas(_WEIGHTS),
        KeepVaried(Limit(middle // 2), _MODELS),
        TakeVariance(_MODELS),
    ]
    for change in changes:
        yield (
            type(change).__name__,
            by_kernels.record(change).deltas,
            by_torch.record(change).deltas,
        )
    dropped = [program.record(changes[1]) for program in (by_kernels, by_torch)]
    sums = [torch.tensor(np.stack(program.sums_before_and_after())) for program in dropped]
    yield "sums_before_and_after", sums[0], sums[1]


def _compare_ranked_drops(by_kernels: DeltaProgram, by_torch: DeltaProgram) -> Compared:
    lines, keys = [(0.3, 0.4 / _WIDTH)] * _MODELS, [(m,) for m in range(_MODELS)]
    bits = [one.draw_ranked(lines, _WIDTH, keys) for one in (by_kernels, by_torch)]
    # Bits of zeros may differ, as a zero is the same dropped and kept.
    kept = [by_kernels.keep_drawn(one, lines, _WIDTH).deltas for one in bits]
    yield "draw_ranked", kept[0], kept[1]
    yield "KeepDrawn", kept[0], by_torch.keep_drawn(bits[0], lines, _WIDTH).deltas


def _compare_conversions(stored: StoredRows) -> Compared:
    decoded = DecodedRows(stored.decode(), stored.decode_base())
    yield "take_runs", stored.take_runs(2, 100).decode(), decoded.take_runs(2, 100).models
    values = decoded.models[0]
    rounded = torch.as_tensor(encode(values.div(3), "bfloat16", kernels=stored.kernels))
    yield "encode", rounded, values.div(3).bfloat16()
    with tempfile.TemporaryFile() as file:
        file.write(values.numpy().tobytes())
        file.flush()
        read = torch.empty(_SIZE - 1)
        stored.kernels.read_file(read.numpy(), file.fileno(), 4)
    yield "read_file", read, values[1:]
    for sample in (values, values.bfloat16()):
        dtype = str(sample.dtype).removeprefix("torch.")
        samples = (sample, sample / 0, torch.full_like(sample, TOO_LARGE))
        words = (one.view(torch.uint8).numpy() for one in samples)
        usable = [words_are_usable(one, dtype, stored.kernels) for one in words]
        yield "are_usable", torch.tensor(usable), torch.tensor([True, False, False])

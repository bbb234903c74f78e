"""The compiled kernels, and their comparison with the torch code that they replace."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import os
import stat
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emberge.numerics import row_kernels
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
from emberge.numerics.evaluations import Bracket, Evaluation
from emberge.numerics.native import build
from emberge.numerics.stored_rows import ALIGNED, TOO_LARGE, Place, StoredRows, words_are_usable

# More than a chunk, and no multiple of a vector or of the width.
_SIZE, _MODELS, _WIDTH = 2048 + 37, 3, 260
_WEIGHTS = [0.7, 0.25, 0.4]


@functools.cache
def kernels() -> Any | None:
    """Return the module of compiled kernels, compared with torch; None if there are none, or if they differ.

    They are compared once for each version and processor, if a file that records this can be kept; else in
    every process. If kernels differ, or cannot be used, a warning is logged.
    """
    try:
        mark = _mark_path(row_kernels.load_library())
        if mark is not None and mark.exists():
            return row_kernels
        different = first_difference(row_kernels)
    except row_kernels.KernelsUnusableError as error:
        _warn(f"{error}; merging by plain torch, which is slower")
        return None
    except row_kernels.KernelsMissingError:
        return None
    if different:
        _warn(
            f"the compiled kernel '{different}' gives other bytes than torch on this machine; "
            "merging by plain torch, which is slower"
        )
        return None
    if mark is not None:
        with contextlib.suppress(OSError):
            mark.touch()
    return row_kernels


def _mark_path(library: row_kernels.KernelLibrary) -> Path | None:
    """Return the path of the file that records that these kernels agreed with torch on this processor.

    None if the user's cache folder cannot be written, or if other users can write there.
    """
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(cache) / "emberge" / "kernels"
        folder.mkdir(0o755, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid not in (os.geteuid(), 0) or status.st_mode & stat.S_IWOTH:
            return None
    except (OSError, RuntimeError):  # also of a user without a home
        return None
    if not os.access(folder, os.W_OK):
        return None
    parts = (
        library.level,
        torch.backends.cpu.get_cpu_capability(),
        torch.__version__,
        np.__version__,
    )
    content = build.LIBRARY.read_bytes() + Path(row_kernels.__file__).read_bytes()
    version = hashlib.blake2b(content + "\0".join(parts).encode(), digest_size=8).hexdigest()
    return folder / f"tested-{version}"


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=3)


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
    memory = torch.zeros(step * (_MODELS + 1), dtype=torch.uint8)
    for m, values in enumerate([*models, base]):
        memory[m * step : m * step + 2 * _SIZE] = values.view(torch.uint8)
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
        return {
            "combine": evaluation.combine(_WEIGHTS, add_base=True),
            "elect": elected,
            "sums": evaluation.sums(squares=False),
            "gram": torch.from_numpy(evaluation.gram(differences=True)),
            "decode": torch.cat([evaluation.values(), evaluation.differences()]),
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
    sums = [torch.stack(program.sums_before_and_after()) for program in dropped]
    yield "sums_before_and_after", sums[0], sums[1]


def _compare_ranked_drops(by_kernels: DeltaProgram, by_torch: DeltaProgram) -> Compared:
    lines, keys = [(0.3, 0.4 / _WIDTH)] * _MODELS, [(m,) for m in range(_MODELS)]
    dropped_deltas = [one.drop_ranked(lines, _WIDTH, keys).deltas for one in (by_kernels, by_torch)]
    yield "drop_ranked", dropped_deltas[0], dropped_deltas[1]


def _compare_conversions(stored: StoredRows) -> Compared:
    decoded = DecodedRows(stored.decode(), stored.decode_base())
    yield "take_runs", stored.take_runs(2, 100)[0], decoded.take_runs(2, 100)[0]
    values = decoded.models[0]
    rounded = torch.empty(_SIZE, dtype=torch.int16)
    stored.kernels.encode(values.div(3).numpy(), rounded.numpy().view("uint16"))
    yield "encode", rounded, values.div(3).bfloat16()
    with tempfile.TemporaryFile() as file:
        file.write(values.numpy().tobytes())
        file.flush()
        read = torch.empty(_SIZE - 1)
        stored.kernels.read_file(read.numpy(), file.fileno(), 4)
    yield "read_file", read, values[1:]
    for sample in (values, values.bfloat16()):
        large = torch.full_like(sample, TOO_LARGE)
        usable = [words_are_usable(words, stored.kernels) for words in (sample, sample / 0, large)]
        yield "are_usable", torch.tensor(usable), torch.tensor([True, False, False])

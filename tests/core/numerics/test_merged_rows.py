"""Kernels store merged rows in bfloat16 at once, with the bytes that rounding torch's float32 rows gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from emberge.numerics import (
    DecodedRows,
    DeltaProgram,
    KeepLargest,
    KeepVaried,
    Limit,
    Place,
    StoredRows,
    TakeVariance,
    encode,
    row_kernels,
)
from torch import Tensor

from tests.support.compiled import require_kernels

# A part of a chunk, whole chunks, and more than a window of the files.
SIZES = [5, 2048, (1 << 16) + 1037]
COUNTS = [1, 2, 3, 4, 6]


def build_programs(
    size: int, models: int, *, other: str = "", based: bool = True, coarse: bool = False
) -> list[DeltaProgram]:
    """Return programs of the same rows for kernels and for torch; `other` is the last model's dtype.

    With `coarse`, there are few different changes.
    """
    require_kernels()
    generator = torch.Generator().manual_seed(size + models)
    base = torch.randn(size, generator=generator) * 0.1
    changes = torch.randn(models, size, generator=generator) * 0.01
    changes[torch.rand(models, size, generator=generator) < 0.1] = 0.0
    base[::7] = changes[:, ::7] = 0.0  # a negative factor gives -0
    if coarse:
        base, changes = base.mul(8).round().div(8), changes.mul(128).round().div(128)
    dtypes = [torch.bfloat16] * models + [torch.bfloat16]
    if other:
        dtypes[models - 1] = getattr(torch, other)
    rows = [row.to(dtype) for row, dtype in zip([*(base + changes), base], dtypes, strict=True)]
    places, end = [], 0
    for number, row in enumerate(rows):
        places.append(Place(str(row.dtype).removeprefix("torch."), end, number))
        end += places[-1].memory_bytes(size)
    memory: np.ndarray = np.zeros(end, np.uint8)
    for place, row in zip(places, rows, strict=True):
        memory[place.start : place.start + row.nbytes] = row.view(torch.uint8).numpy()
    stored = StoredRows.of(
        memory, places[:-1], places[-1] if based else None, (size,), row_kernels, is_checked=True
    )
    decoded = DecodedRows(
        torch.stack([row.float() for row in rows[:-1]]), rows[-1].float() if based else None
    )
    return [DeltaProgram(stored), DeltaProgram(decoded)]


def require_rounded(found: Tensor, exact: Tensor) -> None:
    """Require the bytes of numbers that torch rounds to bfloat16."""
    assert found.dtype == torch.bfloat16
    assert exact.dtype == torch.float32
    assert torch.equal(found.view(torch.int16), exact.bfloat16().view(torch.int16))


def list_factors(count: int) -> list[float]:
    return [-0.7, -0.25, 0.4, 0.0, 1.5, 0.1][:count]


@pytest.mark.parametrize("other", ["", "float16", "float32"])
@pytest.mark.parametrize("models", COUNTS)
@pytest.mark.parametrize("size", SIZES)
def test_weighted_sums_are_rounded_once(size: int, models: int, other: str) -> None:
    factors = list_factors(models)
    for based in (False, True):
        found, exact = (
            program.combine(factors, dtype="bfloat16")
            for program in build_programs(size, models, other=other, based=based)
        )
        require_rounded(found, exact)
    for add_base in (False, True):
        found, exact = (
            program.evaluate_deltas().combine(factors, add_base=add_base, dtype="bfloat16")
            for program in build_programs(size, models, other=other)
        )
        require_rounded(found, exact)


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("models", COUNTS)
def test_elections_are_rounded_once(models: int, normalize: bool, negative: bool) -> None:
    weights = [abs(factor) for factor in list_factors(models)]
    if negative:
        weights[-1] = -0.3
    for size in SIZES:
        for trims in (False, True):
            programs = build_programs(size, models)
            if trims:
                patterns = programs[1].deltas.abs().view(torch.int32)
                change = KeepLargest([Limit(int(row.median()), 0, 1) for row in patterns])
                programs = [program.record(change) for program in programs]
            found, exact = (
                program.evaluate_deltas().elect(
                    weights, weights, normalize=normalize, scale=0.9, dtype="bfloat16"
                )
                for program in programs
            )
            require_rounded(found, exact)


def test_without_a_stored_dtype_rows_stay_in_float32() -> None:
    for dtype in ("float32", "float16"):
        found, exact = (
            program.combine([0.5, 0.25], dtype=dtype) for program in build_programs(2049, 2)
        )
        assert found.dtype == torch.float32
        assert torch.equal(found, exact)


def test_words_of_bfloat16_are_not_rounded_again() -> None:
    words: np.ndarray = np.array([0x3F80, 0x0001], np.uint16)
    assert encode(words, "bfloat16", kernels=row_kernels) is words


def move_into_file(program: DeltaProgram, path: Path, handle: int) -> DeltaProgram:
    """Return the program with its rows in a file, read a window at a time."""
    stored = program.rows
    assert isinstance(stored, StoredRows)
    assert stored.base is not None
    path.write_bytes(stored.memory.tobytes())
    *models, base = (
        place._replace(handle=handle, position=place.start)
        for place in (*stored.models, stored.base)
    )
    room = np.empty(stored.memory.size, np.uint8)
    rows = StoredRows.of(room, models, base, stored.shape, row_kernels, is_checked=True)
    return DeltaProgram(rows, program.start)


# Many rows of a chunk, rows that end in the middle of a chunk, and rows longer than those drawn at once.
@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize(
    ("width", "rows"), [(3, 30_000), (1000, 70), (1025, 17), (5000, 14), (17_000, 3), (70_001, 1)]
)
def test_ranks_are_drawn_in_rows_of_any_width(
    width: int, rows: int, in_files: bool, changed: bool, tmp_path: Path
) -> None:
    by_kernels, by_torch = build_programs(width * rows, 3)
    lines, keys = [(0.2 + 0.1 * m, 0.4 / width) for m in range(3)], [(m,) for m in range(3)]
    (tmp_path / "rows").touch()
    with (tmp_path / "rows").open("rb") as file:
        if in_files:
            by_kernels = move_into_file(by_kernels, tmp_path / "rows", file.fileno())
        kept = []
        for program in (by_kernels, by_torch):
            placed = DeltaProgram(program.rows, 7 * width)
            if changed:
                placed = placed.record(KeepLargest([Limit(0x3C000000, 0, 0)] * 3))
            bits = placed.draw_ranked(lines, width, keys)
            kept.append(placed.keep_drawn(bits, lines, width).deltas)
    assert 0 < kept[0].count_nonzero() < by_torch.deltas.count_nonzero()
    assert torch.equal(*kept)


@pytest.mark.parametrize("width", [40, 300])
def test_equal_magnitudes_are_ranked_by_their_position(width: int) -> None:
    by_kernels, by_torch = build_programs(width * 50, 3)
    lines, keys = [(0.1, 0.8 / width)] * 3, [(m,) for m in range(3)]
    # Few different magnitudes, so that most ranks are decided by positions.
    coarse = by_torch.deltas.mul(100).round().div(100)
    kept = [
        program.with_deltas(coarse).keep_drawn(
            program.with_deltas(coarse).draw_ranked(lines, width, keys), lines, width
        )
        for program in (by_kernels, by_torch)
    ]
    assert torch.equal(kept[0].deltas, kept[1].deltas)


@pytest.mark.parametrize("models", COUNTS[1:])
def test_variances_are_computed_and_limited_as_by_torch(models: int) -> None:
    size, start = 3 * 1024 + 37, 5000
    programs = [
        DeltaProgram(program.rows, start) for program in build_programs(size, models, coarse=True)
    ]
    found, exact = (program.record(TakeVariance(models)).deltas for program in programs)
    assert torch.equal(found.view(torch.int32), exact.view(torch.int32))
    patterns, counts = exact.view(torch.int32).unique(return_counts=True)
    common = int(patterns[1:][counts[1:].argmax()])
    assert counts[1:].max() > 30
    assert (exact.view(torch.int32)[0, 2048:] == common).sum() >= 5
    # A limit in another block, and limits with so many ties to keep that some are in the next chunk.
    limits = [Limit(common), Limit(common, 0, 3), Limit(common, start + size, 2), Limit(0, 0)]
    rows = [start, start + 700, start + 1024, start + 2048]
    limits += [Limit(common, row, quota) for row in rows for quota in (1, 5)]
    for limit in [*limits, Limit.all(), Limit.nothing()]:
        changed = [program.record(KeepVaried(limit, models)) for program in programs]
        assert torch.equal(*(program.deltas.view(torch.int32) for program in changed)), limit
        sums = [program.evaluate_deltas().sums(squares=True) for program in changed]
        assert np.array_equal(*sums), limit

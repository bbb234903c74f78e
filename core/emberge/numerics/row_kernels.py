"""Compiled kernels over stored rows: read and decode them, apply recorded changes and evaluate.

A window of every model is read from its file into the second cache, and a chunk of it stays in the first
cache from its stored bits to the result. No kernel takes the interpreter's lock. Each kernel gives the same
bytes as the torch and NumPy code that it replaces. Importing this module needs numba. All kernels are in one
file, as numba's cache does not notice changes in other files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.extending import intrinsic

from emberge.numerics.compiling import use_kernel_cache

F = TypeVar("F", bound=Callable[..., Any])

CHUNK = 2048
# States of a model's rows, as in `stored_rows`; those that were not read have a lower one.
USABLE, UNUSABLE, UNREADABLE = range(3)
# Numbers of a model that are read from its file at once, a multiple of a chunk (`stored_rows.WINDOW`).
WINDOW = 1 << 16
# What an election works on at once, beside its three sums: half of that cache.
PART = 512
# The order of sums, as in `evaluations`.
LANES, RUN, GRAM_LANES = 1 << 10, 1 << 16, 1 << 8
BFLOAT16, FLOAT16, FLOAT32 = range(3)
KEEP, UNDO, DROP, SCALE, DIVIDE, VARIANCE, SELECT = range(7)
# The hash of `numerics.noise`, word for word.
_STEP, _FIRST, _SECOND = np.uint32(0x9E3779B9), np.uint32(0x21F0AAAD), np.uint32(0xD35A2D97)
_UNIT = np.float32(2.0**-24)
_MAGNITUDE = np.int32(0x7FFFFFFF)
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
# Rows from this width on have bins of magnitudes; wide ones have more of them, 128 an octave instead of 32.
NARROW, WIDE = 256, 2048
FEW_BINS, MANY_BINS, _FEW_SHIFT, _MANY_SHIFT = 1 << 8, 1 << 10, 18, 16
_ODD_BYTES = np.uint64(0x0101010101010101)
_NEGATIVE_ZERO = np.float32(-0.0)


def _compile_lazily(function: F) -> F:
    """Compile a function at its first call."""
    with use_kernel_cache(config) as cache:
        return cast(F, njit(nogil=True, cache=cache, error_model="numpy")(function))


@intrinsic  # type: ignore[untyped-decorator]
def _multiply_and_add(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """Multiply and add with one rounding, as torch's fused steps do."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def _read_as_float(typing: Any, word: Any) -> Any:
    """Return the float32 whose bits are those of a word."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


# ── a window of rows ────────────────────────────────────────────────────────────────────────────

_pread = types.ExternalFunction(
    "pread", types.intp(types.int32, types.uintp, types.uintp, types.int64)
)


@_compile_lazily
def _read_file(memory: Any, handle: int, position: int) -> bool:
    """Fill the memory with the bytes of an open file from a position on; return whether there are as many."""
    done, size, address = 0, memory.size * memory.itemsize, memory.ctypes.data
    while done < size:
        count = _pread(handle, address + done, size - done, position + done)
        if count <= 0:
            return False
        done += count
    return True


@_compile_lazily
def _has_large(words: Any, rest: Any, magnitudes: Any, distances: Any, tops: Any) -> bool:
    """Return whether a number of packed words, or one of the few that are left over, is too large.

    `distances` are those of the least number that is too large from the sign bit, into which a sum with such
    a number carries; no sum carries into the next number.
    """
    seen = np.uint64(0)
    for i in range(len(words)):
        seen |= np.uint64(np.uint64(words[i] & magnitudes) + distances)
    for i in range(len(rest)):
        seen |= np.uint64(np.uint64(np.uint64(rest[i]) & magnitudes) + distances)
    return bool(np.uint64(seen & tops) != np.uint64(0))


@_compile_lazily
def _are_usable(kind: int, half: Any, single: Any) -> bool:
    """Return whether stored numbers are neither NaN nor too large, of `single` or `half` by their kind."""
    if kind == FLOAT32:
        whole = len(single) // 2 * 2
        return not _has_large(
            single[:whole].view(np.uint64),
            single[whole:].view(np.uint32),
            np.uint64(0x7FFFFFFF_7FFFFFFF),
            np.uint64(0x20800000_20800000),
            np.uint64(0x80000000_80000000),
        )
    whole = len(half) // 4 * 4
    distance = np.uint64(0x2080_2080_2080_2080)
    if kind == FLOAT16:
        distance = np.uint64(0x0400_0400_0400_0400)
    return not _has_large(
        half[:whole].view(np.uint64),
        half[whole:],
        np.uint64(0x7FFF_7FFF_7FFF_7FFF),
        distance,
        np.uint64(0x8000_8000_8000_8000),
    )


@_compile_lazily
def _fill(kind: int, half: Any, single: Any, handle: int, position: int, is_checked: bool) -> int:
    """Read the numbers of a window, and return their state."""
    if kind == FLOAT32:
        if not _read_file(single, handle, position):
            return UNREADABLE
    elif not _read_file(half, handle, position):
        return UNREADABLE
    return USABLE if not is_checked or _are_usable(kind, half, single) else UNUSABLE


@_compile_lazily
def _fill_windows(rows: Any, first: int) -> None:
    """Read the next window of all rows that are in files, if one begins at index `first`."""
    half, single, kinds, offsets, base_half, base_single, base_kind, base_at, based, files = rows
    handles, positions, numbers, states, is_checked, size = files
    if first % WINDOW:
        return
    count, models = min(WINDOW, size - first), len(kinds)
    for m in range(models + 1 if based else models):
        if handles[m] < 0:
            continue
        kind = kinds[m] if m < models else base_kind
        at = offsets[m] if m < models else base_at
        halves, singles = (half, single) if m < models else (base_half, base_single)
        position = positions[m] + first * (4 if kind == FLOAT32 else 2)
        # The slice of the other type may be cut short, and is not used.
        state = _fill(
            kind,
            halves[at : at + count],
            singles[at : at + count],
            handles[m],
            position,
            is_checked,
        )
        states[numbers[m]] = max(states[numbers[m]], state)


@_compile_lazily
def _locate(rows: Any, m: int, first: int) -> Any:
    """Return where the numbers from index `first` on begin, of a model or, last, of the base."""
    handles = rows[9][0]
    offset = rows[3][m] if m < len(rows[2]) else rows[7]
    return offset + (first % WINDOW if handles[m] >= 0 else first)


# ── a chunk of rows ─────────────────────────────────────────────────────────────────────────────


@_compile_lazily
def _decode(kind: int, half: Any, single: Any, at: int, into: Any) -> None:
    """Write the stored numbers from index `at` on into `into`, as float32."""
    count = len(into)
    if kind == FLOAT32:
        whole = single[at : at + count]
        for i in range(count):
            into[i] = whole[i]
        return
    stored, bits = half[at : at + count], into.view(np.uint32)
    if kind == BFLOAT16:
        for i in range(count):
            bits[i] = np.uint32(np.uint32(stored[i]) << np.uint32(16))
        return
    # A half's exponent is rebased by a product, which gives its subnormal numbers too.
    for i in range(count):
        bits[i] = np.uint32(np.uint32(stored[i] & np.uint16(0x7FFF)) << np.uint32(13))
    for i in range(count):
        into[i] *= np.float32(2.0**112)
    for i in range(count):
        whole_half = stored[i]
        special = np.uint32(0x7F800000) if (whole_half & 0x7C00) == 0x7C00 else np.uint32(0)
        sign = np.uint32(np.uint32(whole_half & np.uint16(0x8000)) << np.uint32(16))
        bits[i] = np.uint32(bits[i] | special | sign)


@_compile_lazily
def _decode_deltas(kind: int, half: Any, single: Any, at: int, base: Any, into: Any) -> None:
    """Write the stored numbers from index `at` on, minus the base's, into `into`, as float32."""
    count = len(into)
    if kind == BFLOAT16:
        stored = half[at : at + count]
        for i in range(count):
            into[i] = _read_as_float(np.uint32(np.uint32(stored[i]) << np.uint32(16))) - base[i]
        return
    _decode(kind, half, single, at, into)
    for i in range(count):
        into[i] -= base[i]


@_compile_lazily
def _add_up(
    kind: int,
    half: Any,
    single: Any,
    at: int,
    base: Any,
    subtract: bool,
    factor: Any,
    buffer: Any,
    total: Any,
) -> None:
    """Add factor × the stored numbers from index `at` on (minus the base's if `subtract`) to `total`."""
    count = len(total)
    if kind == BFLOAT16:
        stored = half[at : at + count]
        if subtract:
            for i in range(count):
                value = _read_as_float(np.uint32(np.uint32(stored[i]) << np.uint32(16))) - base[i]
                total[i] = _multiply_and_add(value, factor, total[i])
        else:
            for i in range(count):
                value = _read_as_float(np.uint32(np.uint32(stored[i]) << np.uint32(16)))
                total[i] = _multiply_and_add(value, factor, total[i])
        return
    _decode(kind, half, single, at, buffer)
    for i in range(count):
        value = buffer[i] - base[i] if subtract else buffer[i]
        total[i] = _multiply_and_add(value, factor, total[i])


@_compile_lazily
def _begin(program: Any) -> Any:
    """Return the number of ties that each limit may keep, at the start of a block."""
    codes, _, whole, start = program
    left = np.zeros(whole.shape[:2], np.int64)
    for k in range(len(codes)):
        for m in range(whole.shape[1]):
            left[k, m] = whole[k, m, 2] if whole[k, m, 1] >= start else 0
    return left


@_compile_lazily
def _keep(values: Any, first: int, low: int, row: int, quota: int, undo: bool) -> int:
    """Zero the values below a limit (or at and above it); return the number of ties that are left to keep."""
    bits, count = values.view(np.int32), len(values)
    if first + count <= row or quota == 0:
        least = np.int32(low if first + count <= row else low + 1)
        if undo:
            for i in range(count):
                value = values[i]
                values[i] = value - value if (bits[i] & _MAGNITUDE) >= least else value
        else:
            for i in range(count):
                values[i] = values[i] if (bits[i] & _MAGNITUDE) >= least else _ZERO
        return quota
    for i in range(count):
        pattern = bits[i] & _MAGNITUDE
        stays = pattern > low
        if pattern == low:
            stays = first + i < row or quota > 0
            if first + i >= row and quota > 0:
                quota -= 1
        if undo and stays:
            values[i] = values[i] - values[i]
        elif not undo and not stays:
            values[i] = _ZERO
    return quota


@_compile_lazily
def _mix(first: int, places: Any) -> None:
    for i in range(len(places)):
        word = np.uint32(np.uint32(first + 1 + i) * _STEP)
        word = np.uint32(np.uint32(word ^ np.uint32(word >> np.uint32(16))) * _FIRST)
        word = np.uint32(np.uint32(word ^ np.uint32(word >> np.uint32(15))) * _SECOND)
        places[i] = np.uint32(word ^ np.uint32(word >> np.uint32(15)))


@_compile_lazily
def _drop(values: Any, places: Any, first: int, second: int, density: Any) -> None:
    first_word, second_word = np.uint32(first), np.uint32(second)
    for i in range(len(values)):
        word = np.uint32(places[i] * first_word)
        word = np.uint32(np.uint32(word ^ np.uint32(word >> np.uint32(16))) * second_word)
        number = np.float32(np.int32(word >> np.uint32(8))) * _UNIT
        values[i] = (_ONE if number < density else _ZERO) * values[i]


@_compile_lazily
def _compute_variance(values: Any, share: Any, mean: Any, into: Any) -> None:
    """Write the variance over models into `into`, rounded step by step as torch does."""
    count = len(into)
    first = values[0]
    for i in range(count):
        mean[i] = first[i] * share
        into[i] = _ZERO
    for m in range(1, len(values)):
        row = values[m]
        for i in range(count):
            mean[i] = _multiply_and_add(row[i], share, mean[i])
    for m in range(len(values)):
        row = values[m]
        for i in range(count):
            deviation = row[i] - mean[i]
            into[i] = _multiply_and_add(deviation * deviation, share, into[i])


@_compile_lazily
def _load(
    rows: Any, program: Any, left: Any, first: int, count: int, work: Any, places: Any
) -> int:
    """Write a chunk's changed values into work[4:], the base into work[0]; return the number of rows.

    If the last chunk is shorter, the remaining elements are zero.
    """
    _load_unchanged(rows, first, count, work)
    return _change(rows, program, left, first, work, places)


@_compile_lazily
def _load_unchanged(rows: Any, first: int, count: int, work: Any) -> None:
    """Write a chunk's values into work[4:], before their changes, and the base into work[0]."""
    half, single, kinds, _, base_half, base_single, base_kind, _, based, _ = rows
    models = len(kinds)
    values = work[4:]
    _fill_windows(rows, first)
    if based:
        base = work[0]
        _decode(base_kind, base_half, base_single, _locate(rows, models, first), base[:count])
        base[count:] = _ZERO
    for m in range(models):
        row, at = values[m, :count], _locate(rows, m, first)
        if based == 1:
            _decode_deltas(kinds[m], half, single, at, work[0], row)
        else:
            _decode(kinds[m], half, single, at, row)
        values[m, count:] = _ZERO


@_compile_lazily
def _change(rows: Any, program: Any, left: Any, first: int, work: Any, places: Any) -> int:
    """Change a chunk's values in work[4:] as the program says, and return the number of rows."""
    codes, numbers, whole, start = program
    models = len(rows[2])
    values = work[4:]
    for k in range(len(codes)):
        code = codes[k]
        if code == VARIANCE:
            _compute_variance(values[:models], numbers[k, 0], work[1], work[2])
            values[0, :] = work[2]
            models = 1
        elif code == SELECT:
            _compute_variance(values[:models], numbers[k, 0], work[1], work[2])
            left[k, 0] = _keep(
                work[2], start + first, whole[k, 0, 0], whole[k, 0, 1], left[k, 0], False
            )
            selection = work[2]
            for m in range(models):
                row = values[m]
                for i in range(len(row)):
                    row[i] *= _ONE if selection[i] > _ZERO else _ZERO
        else:
            if code == DROP:
                _mix(start + first, places)
            for m in range(models):
                row = values[m]
                if code == KEEP or code == UNDO:
                    left[k, m] = _keep(
                        row,
                        start + first,
                        whole[k, m, 0],
                        whole[k, m, 1],
                        left[k, m],
                        code == UNDO,
                    )
                elif code == DROP:
                    _drop(row, places, whole[k, m, 0], whole[k, m, 1], numbers[k, m])
                elif code == SCALE:
                    factor = numbers[k, m]
                    for i in range(len(row)):
                        row[i] *= factor
                elif code == DIVIDE:
                    divisor = numbers[k, m]
                    for i in range(len(row)):
                        row[i] /= divisor
    return models


@_compile_lazily
def _allocate_chunk(models: int) -> Any:
    """Return memory for a chunk: rows for the base, three temporary ones, and every model's."""
    return np.empty((models + 4, CHUNK), np.float32)


# ── what is evaluated ───────────────────────────────────────────────────────────────────────────


@_compile_lazily
def decode(rows: Any, program: Any, size: int, less_first: bool, out: Any) -> None:
    """Write the changed values into `out` [rows, size], or the first row and the other rows minus it."""
    left, work, places = _begin(program), _allocate_chunk(len(rows[2])), np.empty(CHUNK, np.uint32)
    half, single, kinds, _, base_half, base_single, base_kind, _, based, _ = rows
    for first in range(0, size, CHUNK):
        end = min(first + CHUNK, size)
        if len(program[0]):
            models = _load(rows, program, left, first, end - first, work, places)
            for m in range(models):
                out[m, first:end] = work[4 + m, : end - first]
        else:
            _fill_windows(rows, first)
            base = work[0, : end - first]
            if based == 1:
                _decode(base_kind, base_half, base_single, _locate(rows, len(kinds), first), base)
            for m in range(len(kinds)):
                into, at = out[m, first:end], _locate(rows, m, first)
                if based == 1:
                    _decode_deltas(kinds[m], half, single, at, base, into)
                else:
                    _decode(kinds[m], half, single, at, into)
        if less_first:
            origin = out[0, first:end]
            for m in range(1, len(out)):
                row = out[m, first:end]
                for i in range(len(row)):
                    row[i] -= origin[i]


@_compile_lazily
def combine(
    rows: Any, program: Any, size: int, coefficients: Any, add_base: bool, out: Any
) -> None:
    """Write the sum of coefficient × values, in model order, and the base if asked for, into `out` [size]."""
    left, work, places = _begin(program), _allocate_chunk(len(rows[2])), np.empty(CHUNK, np.uint32)
    total, base = work[1], work[0]
    half, single, kinds, _, base_half, base_single, base_kind, _, based, _ = rows
    if not len(program[0]):
        for first in range(0, size, CHUNK):
            count = min(CHUNK, size - first)
            _fill_windows(rows, first)
            if based:
                at = _locate(rows, len(kinds), first)
                _decode(base_kind, base_half, base_single, at, base[:count])
            # The sum of a product and -0 is the product, whatever its sign.
            total[:] = _NEGATIVE_ZERO
            for m in range(len(kinds)):
                _add_up(
                    kinds[m],
                    half,
                    single,
                    _locate(rows, m, first),
                    base,
                    based == 1,
                    coefficients[m],
                    work[2, :count],
                    total[:count],
                )
            if add_base:
                for i in range(count):
                    out[first + i] = total[i] + base[i]
            else:
                out[first : first + count] = total[:count]
        return
    for first in range(0, size, CHUNK):
        count = min(CHUNK, size - first)
        models = _load(rows, program, left, first, count, work, places)
        row, factor = work[4], coefficients[0]
        for i in range(CHUNK):
            total[i] = row[i] * factor
        for m in range(1, models):
            row, factor = work[4 + m], coefficients[m]
            for i in range(CHUNK):
                total[i] = _multiply_and_add(row[i], factor, total[i])
        if add_base:
            for i in range(CHUNK):
                total[i] += base[i]
        out[first : first + count] = total[:count]


@_compile_lazily
def elect(
    rows: Any,
    program: Any,
    size: int,
    votes: Any,
    weights: Any,
    least: Any,
    normalize: bool,
    scale: Any,
    out: Any,
) -> None:
    """Write base + scale × the mean of the values with the elected sign into `out` [size].

    `least` is the smallest divisor of a mean. If it is below zero, a divisor of zero is replaced by one.
    """
    left, work, places = _begin(program), _allocate_chunk(len(rows[2])), np.empty(CHUNK, np.uint32)
    elected, total, divisor = work[1, :PART], work[2, :PART], work[3, :PART]
    for first in range(0, size, CHUNK):
        count = min(CHUNK, size - first)
        models = _load(rows, program, left, first, count, work, places)
        for at in range(0, count, PART):
            end = at + PART
            row, vote = work[4, at:end], votes[0]
            for i in range(PART):
                elected[i] = row[i] * vote
            for m in range(1, models):
                row, vote = work[4 + m, at:end], votes[m]
                for i in range(PART):
                    elected[i] = _multiply_and_add(row[i], vote, elected[i])
            for i in range(PART):
                elected[i] = _HALF if elected[i] >= _ZERO else -_HALF
                total[i] = _ZERO
                divisor[i] = _ZERO
            for m in range(models):
                row, weight = work[4 + m, at:end], weights[m]
                sign = _ONE if weight > _ZERO else -_ONE
                for i in range(PART):
                    agrees = _ONE if row[i] * elected[i] * sign > _ZERO else _ZERO
                    total[i] = _multiply_and_add(weight * agrees, row[i], total[i])
                    divisor[i] = _multiply_and_add(agrees, weight, divisor[i])
            if normalize:
                if least < _ZERO:
                    for i in range(PART):
                        by = divisor[i]
                        total[i] /= by + (_ONE if by == _ZERO else _ZERO)
                else:
                    for i in range(PART):
                        by = divisor[i]
                        total[i] /= by if by > least else least
            base = work[0, at:end]
            for i in range(PART):
                total[i] = _multiply_and_add(total[i], scale, base[i])
            into = out[first + at : first + min(end, count)]
            for i in range(len(into)):
                into[i] = total[i]


@_compile_lazily
def sums(
    rows: Any, program: Any, size: int, squares: bool, with_before: bool, before: Any, out: Any
) -> None:
    """Add the magnitudes or squares of each model's values to the lanes `out` [models, LANES] in float64.

    If `with_before`, those of the values before their changes are added to `before` [models, LANES].
    """
    left, work, places = _begin(program), _allocate_chunk(len(rows[2])), np.empty(CHUNK, np.uint32)
    run, run_before = np.zeros(out.shape, np.float32), np.zeros(before.shape, np.float32)
    for first in range(0, size, CHUNK):
        _load_unchanged(rows, first, min(CHUNK, size - first), work)
        ends_run = (first + CHUNK) % RUN == 0 or first + CHUNK >= size
        if with_before:
            _add_to_lanes(work[4:], squares, run_before, before, ends_run)
        _change(rows, program, left, first, work, places)
        _add_to_lanes(work[4:], squares, run, out, ends_run)


@_compile_lazily
def _add_to_lanes(values: Any, squares: bool, run: Any, out: Any, ends_run: bool) -> None:
    """Add the magnitudes or squares of a chunk to the lanes of a run, and at its end these to `out`."""
    for m in range(len(out)):
        row, lanes, wide = values[m], run[m], out[m]
        for at in range(0, CHUNK, LANES):
            part = row[at : at + LANES]
            if squares:
                for lane in range(LANES):
                    lanes[lane] += part[lane] * part[lane]
            else:
                for lane in range(LANES):
                    lanes[lane] += abs(part[lane])
        if ends_run:
            for lane in range(LANES):
                wide[lane] += np.float64(lanes[lane])
                lanes[lane] = _ZERO


@_compile_lazily
def gram(rows: Any, program: Any, size: int, less_first: bool, out: Any) -> None:
    """Add the products of each two models' values to the lanes `out` [pairs, GRAM_LANES], in float64.

    Pairs are those of a lower triangle, row by row. With `less_first`, the values are those of the first
    model, and of the other models minus the first's.
    """
    left, work, places = _begin(program), _allocate_chunk(len(rows[2])), np.empty(CHUNK, np.uint32)
    for first in range(0, size, CHUNK):
        models = _load(rows, program, left, first, min(CHUNK, size - first), work, places)
        if less_first:
            origin = work[4]
            for m in range(1, models):
                row = work[4 + m]
                for i in range(CHUNK):
                    row[i] -= origin[i]
        pair = 0
        for m in range(models):
            for other in range(m + 1):
                _multiply_to_lanes(work[4 + m], work[4 + other], out[pair])
                pair += 1


@_compile_lazily
def _multiply_to_lanes(row: Any, column: Any, lanes: Any) -> None:
    """Add the products of two rows of a chunk to their lanes."""
    for at in range(0, CHUNK, GRAM_LANES):
        first, second = row[at : at + GRAM_LANES], column[at : at + GRAM_LANES]
        for lane in range(GRAM_LANES):
            lanes[lane] += np.float64(first[lane]) * np.float64(second[lane])


@_compile_lazily
def mix(first: int, places: Any) -> None:
    """Fill `places` with hashes of the positions from `first` on, from which all models draw numbers."""
    _mix(first, places)


@_compile_lazily
def _draw(places: Any, first: int, second: int, numbers: Any) -> None:
    """Write a model's random number for each mixed position into `numbers`."""
    first_word, second_word = np.uint32(first), np.uint32(second)
    for i in range(len(numbers)):
        word = np.uint32(places[i] * first_word)
        word = np.uint32(np.uint32(word ^ np.uint32(word >> np.uint32(16))) * second_word)
        numbers[i] = np.float32(np.int32(word >> np.uint32(8))) * _UNIT


@_compile_lazily
def _assign_bins(patterns: Any, last: int, shift: int, bins: Any) -> None:
    """Write the bin of each pattern into `bins`, from 0 to `last`, by the distance from the mean pattern.

    A bin has 2^`shift` patterns. Bins are around the mean of all patterns but zero, so that neither zeros nor
    outliers leave most of the others in one bin.
    """
    total, count = np.int64(0), np.int64(0)
    for i in range(len(patterns)):
        total += np.int64(patterns[i])
        count += np.int64(patterns[i] != 0)
    span = np.int64(last) << np.int64(shift)
    mean = total // (count + np.int64(count == 0))
    lowest = np.int32(max(mean - span // 8 * 5, np.int64(0)))
    highest = np.int32(min(np.int64(lowest) + span, np.int64(_MAGNITUDE)))
    for i in range(len(patterns)):
        bins[i] = np.uint32(min(max(patterns[i], lowest), highest) - lowest) >> np.uint32(shift)


@_compile_lazily
def _bound_chances(bins: Any, chances: Any, counts: Any, below: Any, lows: Any, highs: Any) -> None:
    """Write the probabilities of the lowest and the highest rank in each bin into `lows` and `highs`.

    `counts` and `below` are memory for the number of values in each bin, and in all bins below the next one.
    """
    counts[:] = 0
    for i in range(len(bins)):
        counts[bins[i]] += np.int32(1)
    last, total = np.uint32(len(chances) - 1), np.uint32(0)
    for b in range(len(counts)):
        lows[b] = chances[min(total, last)]
        total = np.uint32(total + np.uint32(counts[b]))
        below[b] = total
    for b in range(len(counts)):
        highs[b] = chances[max(below[b], np.uint32(1)) - np.uint32(1)]


@_compile_lazily
def _rank(patterns: Any, i: int) -> Any:
    """Return the rank of value i in its row, where equal values are ranked by their position."""
    pattern, rank = patterns[i], np.int32(0)
    for j in range(len(patterns)):
        rank += np.int32(patterns[j] < pattern)
    for j in range(i):
        rank += np.int32(patterns[j] == pattern)
    return rank


@_compile_lazily
def drop_ranked(values: Any, chances: Any, places: Any, first: int, second: int) -> None:
    """Zero values of rows [rows, width] by the probability for each rank and a hash of each position.

    `places` are the mixed positions; `chances` [width] are ascending. Counts of magnitudes in bins bound each
    rank. The exact rank of a value in its row is computed only if the value's random number is between the
    probabilities of both bounds. Indices are unsigned: a signed one is compared with zero at each use.
    """
    width = values.shape[1]
    numbers, patterns = np.empty(width, np.float32), np.empty(width, np.int32)
    bins, count = np.zeros(width, np.uint32), FEW_BINS if width < WIDE else MANY_BINS
    counts, below = np.empty(count, np.int32), np.empty(count, np.uint32)
    lows, highs = np.full(count, chances[0]), np.full(count, chances[width - 1])
    least, most = np.empty(width, np.float32), np.empty(width, np.float32)
    # Of each value: 0 if it stays, 1 if its rank decides, 2 if it becomes zero; eight of them in a word.
    codes = np.zeros(-(-width // 8) * 8, np.uint8)
    words = codes.view(np.uint64)
    for r in range(len(values)):
        row = values[r]
        bits = row.view(np.int32)
        for i in range(width):
            patterns[i] = bits[i] & _MAGNITUDE
        _draw(places[r * width : r * width + width], first, second, numbers)
        if width >= NARROW:
            _assign_bins(patterns, count - 1, _FEW_SHIFT if width < WIDE else _MANY_SHIFT, bins)
            _bound_chances(bins, chances, counts, below, lows, highs)
        for i in range(width):
            least[i] = lows[bins[i]]
            most[i] = highs[bins[i]]
        for i in range(width):
            codes[i] = np.uint8(numbers[i] >= least[i]) + np.uint8(numbers[i] >= most[i])
        for w in range(len(words)):
            if not words[w] & _ODD_BYTES:
                continue
            for i in range(8 * w, 8 * w + 8):
                # A zero stays what it is.
                if codes[i] == 1 and patterns[i]:
                    codes[i] = np.uint8(numbers[i] >= chances[_rank(patterns, i)])
        for i in range(width):
            row[i] *= _ONE if codes[i] == 0 else _ZERO


@_compile_lazily
def count_near_limits(
    rows: Any,
    program: Any,
    size: int,
    width: int,
    model_of_limit: Any,
    lows: Any,
    highs: Any,
    frequent: Any,
    counts: Any,
    values: Any,
    pattern_rows: Any,
    ties: Any,
) -> None:
    """Count the magnitudes near each limit of a model; arguments have a row for each limit.

    `counts` receives the counts of magnitudes above, inside, not zero, and collected; `values` and
    `pattern_rows` receive the collected patterns and their rows, and `ties` [limits, rows, patterns] the
    counts of the `frequent` patterns.
    """
    left, work, places = _begin(program), _allocate_chunk(len(rows[2])), np.empty(CHUNK, np.uint32)
    inside = np.empty(CHUNK, np.int32)
    for first in range(0, size, CHUNK):
        count = min(CHUNK, size - first)
        _load(rows, program, left, first, count, work, places)
        for limit in range(len(model_of_limit)):
            row = work[4 + model_of_limit[limit]]
            bits = row.view(np.int32)[:count]
            low, high = np.int32(lows[limit]), np.int32(highs[limit])
            span = np.uint32(high - low)
            above, nonzero = np.int32(0), np.int32(0)
            for i in range(count):
                pattern = bits[i] & _MAGNITUDE
                above += np.int32(pattern > high)
                nonzero += np.int32(pattern > 0)
            inside_count: Any = 0
            for i in range(count):
                inside[inside_count] = i
                inside_count += np.uint32((bits[i] & _MAGNITUDE) - low) <= span
            counts[limit, 0] += above
            counts[limit, 1] += inside_count
            counts[limit, 2] += nonzero
            into, at = values[limit], counts[limit, 3]
            value_rows, tie_counts = pattern_rows[limit], ties[limit]
            patterns = frequent[limit]
            for n in range(inside_count):
                i = inside[n]
                pattern = bits[i] & _MAGNITUDE
                tensor_row = (first + i) // width
                frequent_index = -1
                for f in range(len(patterns)):
                    if patterns[f] == pattern:
                        frequent_index = f
                if frequent_index >= 0:
                    tie_counts[frequent_index, tensor_row] += 1
                else:
                    into[at] = pattern
                    value_rows[at] = tensor_row
                    at += 1
            counts[limit, 3] = at


@_compile_lazily
def encode(values: Any, into: Any) -> None:
    """Write float32 numbers as bfloat16, rounded to nearest, ties to even; NaN stays NaN."""
    bits = values.view(np.uint32)
    for i in range(len(into)):
        word = bits[i]
        rounded = np.uint32(
            np.uint32(word + np.uint32(0x7FFF))
            + np.uint32(np.uint32(word >> np.uint32(16)) & np.uint32(1))
        )
        nan = np.uint32(word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        into[i] = np.uint16(0x7FC0) if nan else np.uint16(rounded >> np.uint32(16))


@_compile_lazily
def are_usable(kind: int, half: Any, single: Any) -> bool:
    """Return whether stored numbers are neither NaN nor too large, of `single` or `half` by their kind."""
    return _are_usable(kind, half, single)


@_compile_lazily
def take_runs(rows: Any, begins: Any, ends: Any, out: Any, base_out: Any) -> None:
    """Write the numbers from each of `begins` to its end into `out` [models, k] and `base_out` [k].

    Of rows in files nothing else is read, and what is read is not checked.
    """
    half, single, kinds, starts, base_half, base_single, base_kind, base_at, based, files = rows
    models = len(kinds)
    for m in range(models):
        _take_runs(m, kinds[m], half, single, starts[m], files, begins, ends, out[m])
    if based:
        _take_runs(
            models, base_kind, base_half, base_single, base_at, files, begins, ends, base_out
        )


@_compile_lazily
def _take_runs(
    m: int,
    kind: int,
    half: Any,
    single: Any,
    at: int,
    files: Any,
    begins: Any,
    ends: Any,
    into: Any,
) -> None:
    """Write the numbers of these runs of model m, or last of the base, into `into`."""
    handles, positions, numbers, states, _, _ = files
    taken, itemsize = 0, 4 if kind == FLOAT32 else 2
    for run in range(len(begins)):
        begin, count = begins[run], ends[run] - begins[run]
        place = at + begin
        if handles[m] >= 0:
            place = at
            halves, singles = half[at : at + count], single[at : at + count]
            position = positions[m] + begin * itemsize
            if _fill(kind, halves, singles, handles[m], position, False) == UNREADABLE:
                states[numbers[m]] = UNREADABLE
                return
        _decode(kind, half, single, place, into[taken : taken + count])
        taken += count


@_compile_lazily
def read_file(memory: Any, handle: int, position: int) -> bool:
    """Fill the memory with the bytes of an open file from a position on; return whether there are as many."""
    return _read_file(memory, handle, position)

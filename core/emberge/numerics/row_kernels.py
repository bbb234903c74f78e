"""The compiled kernels over stored rows, called by ctypes, which lets other threads run meanwhile.

The kernels are in `native/row_kernels.c`. Importing this module loads no library: the first call does.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import numpy as np

from emberge.numerics.native import build

CHUNK = 1024
# Numbers that kernels read from a model's file in one call (`stored_rows.WINDOW`).
WINDOW = 1 << 16
# The order of sums, as in `evaluations`.
LANES, GRAM_LANES = 1 << 10, 1 << 8
BFLOAT16, FLOAT16, FLOAT32 = range(3)

_NO_MEMORY = -1
_REMEDY = f"build them with a C compiler (python {build.__file__})"
_INT32, _INT64, _UINT16, _UINT32 = (
    np.dtype(name) for name in ("int32", "int64", "uint16", "uint32")
)
_BYTE, _SINGLE, _DOUBLE = np.dtype("uint8"), np.dtype("float32"), np.dtype("float64")
_POINTER, _NUMBER, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
# The arguments of each kernel after its name's level, as in `row_kernels.c`.
_EVALUATES = (_POINTER, _POINTER)
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "decode": (*_EVALUATES, _NUMBER, _POINTER),
    "combine": (*_EVALUATES, _POINTER, _NUMBER, _NUMBER, _POINTER),
    "elect": (*_EVALUATES, _POINTER, _POINTER, _FLOAT, _NUMBER, _FLOAT, _NUMBER, _POINTER),
    "sums": (*_EVALUATES, _NUMBER, _NUMBER, _POINTER, _NUMBER, _POINTER),
    "gram": (*_EVALUATES, _NUMBER, _NUMBER, _POINTER),
    "draw_ranked": (*_EVALUATES, _NUMBER, _POINTER, _POINTER, _POINTER),
    "count_near_limits": (*_EVALUATES, _POINTER),
    "encode": (_POINTER, _NUMBER, _POINTER),
    "are_usable": (_NUMBER, _POINTER, _NUMBER),
    "take_runs": (_POINTER, _NUMBER, _POINTER, _POINTER, _NUMBER, _POINTER, _POINTER),
    "read_file": (_POINTER, _NUMBER, _NUMBER, _NUMBER),
}


class KernelsMissingError(Exception):
    """Compiled kernels that this installation or this processor does not have, with reason and remedy."""


class KernelsUnusableError(KernelsMissingError):
    """Compiled kernels that exist but cannot be loaded, or were built from another source."""


class KernelLibrary(NamedTuple):
    """The loaded kernels for one level of processors, by their names."""

    level: str
    kernels: dict[str, Any]

    @property
    def processor(self) -> str:
        """The processors that the kernels were compiled for, such as x86-64-v4."""
        return self.level if self.level == "arm64" else f"x86-64-{self.level}"


@functools.cache
def load_library() -> KernelLibrary:
    """Return the kernels for this processor.

    Raises:
        KernelsMissingError: if there is no library, or if it cannot be used here.
    """
    if not build.LIBRARY.exists():
        raise KernelsMissingError(f"this installation has no compiled kernels: {_REMEDY}")
    try:
        library = ctypes.CDLL(str(build.LIBRARY))
        functions = [library.emberge_source, library.emberge_level]
    except (OSError, AttributeError) as error:
        reason = f"the compiled kernels cannot be loaded ({error}): {_REMEDY}"
        raise KernelsUnusableError(reason) from None
    for function in functions:
        function.restype = ctypes.c_char_p
    source, level = (function().decode() for function in functions)
    if source != build.hash_source():
        reason = f"the compiled kernels were built from another source: {_REMEDY}"
        raise KernelsUnusableError(reason)
    if not level:
        raise KernelsMissingError("this processor has no AVX2, which the compiled kernels need")
    kernels = {}
    for name, arguments in _ARGUMENTS.items():
        kernel = kernels[name] = library[f"emberge_{name}_{level}"]
        kernel.argtypes, kernel.restype = arguments, ctypes.c_int
    return KernelLibrary(level, kernels)


class KernelRows(ctypes.Structure):
    """The kernels' view of stored rows: where those of each model and, last, of the base are."""

    _fields_ = (
        *((name, _POINTER) for name in ("memory", "base_memory")),
        *((name, _POINTER) for name in ("kinds", "starts", "handles", "positions", "numbers")),
        ("states", _POINTER),
        *((name, _NUMBER) for name in ("models", "based", "is_checked", "size")),
    )
    models: int
    size: int

    @classmethod
    def of(
        cls,
        memory: np.ndarray,
        base_memory: np.ndarray,
        places: np.ndarray,
        states: np.ndarray,
        *,
        based: int,
        is_checked: bool,
        size: int,
    ) -> KernelRows:
        """Return rows in these memories, which they keep alive.

        `places` [5, models + 1] has kinds, first numbers in memory, handles, positions in files, and numbers.
        """
        models = places.shape[1] - 1
        first, step = _address(places, _INT64), places.strides[0]
        rows = cls(
            _address(memory, memory.dtype),
            _address(base_memory, base_memory.dtype),
            *range(first, first + 5 * step, step),
            _address(states, _INT64),
            models,
            based,
            is_checked,
            size,
        )
        rows._kept = (memory, base_memory, places, states)
        return rows


class KernelProgram(ctypes.Structure):
    """The kernels' view of recorded changes."""

    _fields_ = (
        *((name, _POINTER) for name in ("codes", "numbers", "words")),
        *((name, _NUMBER) for name in ("changes", "start")),
    )

    @classmethod
    def of(
        cls, codes: np.ndarray, numbers: np.ndarray, words: np.ndarray, start: int
    ) -> KernelProgram:
        """Return changes by their codes [k], numbers [k, models] and integers [k, models, 3]."""
        program = cls(
            _address(codes, _INT64),
            _address(numbers, _SINGLE),
            _address(words, _INT64),
            len(codes),
            start,
        )
        program._kept = (codes, numbers, words)
        return program


class _NearLimits(ctypes.Structure):
    _fields_ = (
        *((name, _NUMBER) for name in ("width", "limits", "frequent_count", "tensor_rows")),
        *((name, _POINTER) for name in ("model_of_limit", "lows", "highs", "frequent", "counts")),
        *((name, _POINTER) for name in ("values", "value_rows", "tie_counts")),
    )


def _address(array: np.ndarray, dtype: np.dtype[Any], size: int | None = None) -> int:
    """Return the address of an array, which must be as the kernels take it for.

    Raises:
        TypeError: if the array has another dtype or size, or gaps.
    """
    fits = array.dtype == dtype and array.flags.c_contiguous
    if not fits or (size is not None and array.size != size):
        raise TypeError(f"kernels need {size} {dtype}, not {array.shape} {array.dtype}")
    address: int = array.__array_interface__["data"][0]
    return address


def _call(name: str, *arguments: Any) -> int:
    code: int = load_library().kernels[name](*arguments)
    if code == _NO_MEMORY:
        raise MemoryError
    return code


def _evaluate(
    name: str, rows: KernelRows, program: KernelProgram, size: int, *arguments: Any
) -> None:
    if size != rows.size:
        raise TypeError(f"rows of {rows.size} numbers, not {size}")
    _call(name, ctypes.addressof(rows), ctypes.addressof(program), *arguments)


def _merged(out: np.ndarray, size: int) -> tuple[int, int]:
    """Return the kind and the address of merged rows, float32 or words of bfloat16."""
    if out.dtype == _UINT16:
        return BFLOAT16, _address(out, _UINT16, size)
    return FLOAT32, _address(out, _SINGLE, size)


def decode(
    rows: KernelRows, program: KernelProgram, size: int, less_first: bool, out: np.ndarray
) -> None:
    """Write the changed values into `out` [rows, size], or the first row and the other rows minus it."""
    into = _address(out, _SINGLE, len(out) * size)
    _evaluate("decode", rows, program, size, less_first, into)


def combine(
    rows: KernelRows,
    program: KernelProgram,
    size: int,
    coefficients: np.ndarray,
    add_base: bool,
    out: np.ndarray,
) -> None:
    """Write the sum of coefficient × values, in model order, and the base if asked for, into `out` [size].

    `out` is of float32, or of uint16 for numbers in bfloat16.
    """
    factors = _address(coefficients, _SINGLE)
    _evaluate("combine", rows, program, size, factors, add_base, *_merged(out, size))


def elect(
    rows: KernelRows,
    program: KernelProgram,
    size: int,
    votes: np.ndarray,
    weights: np.ndarray,
    least: float,
    normalize: bool,
    scale: float,
    out: np.ndarray,
) -> None:
    """Write base + scale × the mean of the values with the elected sign into `out` [size].

    `least` is the smallest divisor of a mean. If it is below zero, a divisor of zero is replaced by one.
    `out` is of float32, or of uint16 for numbers in bfloat16.
    """
    given = _address(votes, _SINGLE), _address(weights, _SINGLE), least, normalize, scale
    _evaluate("elect", rows, program, size, *given, *_merged(out, size))


def sums(
    rows: KernelRows,
    program: KernelProgram,
    size: int,
    squares: bool,
    with_before: bool,
    before: np.ndarray,
    out: np.ndarray,
) -> None:
    """Add the magnitudes or squares of each model's values to the lanes `out` [models, LANES] in float64.

    If `with_before`, those of the values before their changes are added to `before` [models, LANES].
    """
    count = len(before) if with_before else 0
    into = _address(out, _DOUBLE, len(out) * LANES)
    into_before = _address(before, _DOUBLE, len(before) * LANES)
    _evaluate("sums", rows, program, size, squares, count, into_before, len(out), into)


def gram(
    rows: KernelRows, program: KernelProgram, size: int, less_first: bool, out: np.ndarray
) -> None:
    """Add the products of each pair of models to the lanes `out` [pairs, GRAM_LANES], in float64.

    Pairs are (0, 0), (1, 0), (1, 1), (2, 0), …, of the models as they are after the changes. With
    `less_first`, the other models' values are those minus the first's.
    """
    models = int((2 * len(out)) ** 0.5)
    into = _address(out, _DOUBLE, len(out) * GRAM_LANES)
    _evaluate("gram", rows, program, size, less_first, models, into)


def draw_ranked(
    rows: KernelRows,
    program: KernelProgram,
    size: int,
    chances: np.ndarray,
    multipliers: np.ndarray,
    bits: np.ndarray,
) -> None:
    """Decide which changed values stay, by their ranks' probabilities and hashes of positions.

    `chances` [models, width] are ascending, and `multipliers` [models, 2] are those of the models' hashes. In
    `bits` [models, rows, (width + 7) // 8] a value that stays has a 1; a row's first value has the lowest bit
    of its first byte.
    """
    models, width = chances.shape
    given = (
        width,
        _address(chances, _SINGLE),
        _address(multipliers, _UINT32, 2 * models),
        _address(bits, _BYTE, models * (size // width) * -(-width // 8)),
    )
    _evaluate("draw_ranked", rows, program, size, *given)


def count_near_limits(
    rows: KernelRows,
    program: KernelProgram,
    size: int,
    width: int,
    model_of_limit: np.ndarray,
    lows: np.ndarray,
    highs: np.ndarray,
    frequent: np.ndarray,
    counts: np.ndarray,
    values: np.ndarray,
    pattern_rows: np.ndarray,
    ties: np.ndarray,
) -> None:
    """Count the magnitudes near each limit of a model; arguments have a row for each limit.

    `counts` receives the counts of magnitudes above, inside, not zero, and collected; `values` and
    `pattern_rows` receive the collected patterns and their rows, and `ties` [limits, frequent, rows] the
    counts of the `frequent` patterns.
    """
    limits, patterns = frequent.shape
    near = _NearLimits(
        width,
        limits,
        patterns,
        ties.shape[2],
        *(_address(array, _INT64, limits) for array in (model_of_limit, lows, highs)),
        _address(frequent, _INT64),
        _address(counts, _INT64, 4 * limits),
        *(_address(array, _INT32, limits * size) for array in (values, pattern_rows)),
        _address(ties, _INT32, limits * patterns * -(-size // width)),
    )
    _evaluate("count_near_limits", rows, program, size, ctypes.addressof(near))


def encode(values: np.ndarray, into: np.ndarray) -> None:
    """Write float32 numbers as bfloat16, rounded to nearest, ties to even; NaN stays NaN."""
    _call("encode", _address(values, _SINGLE), into.size, _address(into, _UINT16, values.size))


def are_usable(kind: int, stored: np.ndarray) -> bool:
    """Return whether stored numbers, given as bytes, are neither NaN nor too large."""
    count = stored.size // (4 if kind == FLOAT32 else 2)
    return bool(_call("are_usable", kind, _address(stored, _BYTE), count))


def take_runs(rows: KernelRows, begins: np.ndarray, ends: np.ndarray, out: np.ndarray) -> None:
    """Write the numbers from each of `begins` to its end into `out` [models + 1, width], last the base's.

    Of rows in files nothing else is read, and what is read is not checked.
    """
    into = _address(out, _SINGLE), _address(out[-1], _SINGLE)
    runs = _address(begins, _INT64), _address(ends, _INT64, len(begins))
    _call("take_runs", ctypes.addressof(rows), len(begins), *runs, out.shape[1], *into)


def read_file(memory: np.ndarray, handle: int, position: int) -> bool:
    """Fill the memory with the bytes of an open file from a position on; return whether there are as many."""
    return bool(_call("read_file", _address(memory, memory.dtype), memory.nbytes, handle, position))

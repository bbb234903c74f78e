"""The compiled kernels of `native/row_kernels.c`, called by ctypes, which lets other threads run meanwhile.

Importing the module loads neither torch nor the library. `load_library` loads it, and `load_kernels` in
`stored_rows` also tries it with a small sum.
"""

from __future__ import annotations

import ctypes
import functools
import os
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from emberge.numerics.native import build

KERNELS_VARIABLE = "EMBERGE_KERNELS"
"""Environment variable: `never` merges by plain torch."""
CHUNK_NUMBERS = 1 << 10
"""Numbers of a model that kernels work on at once."""
WINDOW_NUMBERS = 1 << 16
"""Numbers of a model that kernels read from its file at once."""
LANES = 1 << 10
"""Sums of numbers that are added up side by side."""
GRAM_LANES = 1 << 8
"""Sums of products of two models that are added up side by side."""
CHANGE_KERNELS = ("keep", "undo", "drop", "scale", "divide", "variance", "select", "drawn")
"""Kernels of changes of deltas, in the order of their codes."""

_NO_MEMORY = -1
_REMEDY = f"build them with a C compiler (python {build.__file__})"


_POINTER, _NUMBER, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_BYTES, _UINT32S, _INT32S, _INT64S, _FLOATS, _DOUBLES = (
    np.ctypeslib.ndpointer(dtype, flags="C_CONTIGUOUS")
    for dtype in ("uint8", "uint32", "int32", "int64", "float32", "float64")
)
# The arguments of each kernel; ctypes refuses arrays of another dtype, or with gaps.
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "decode": (_POINTER, _FLOATS),
    "combine": (_POINTER, _FLOATS, _NUMBER, _NUMBER, _POINTER),
    "elect": (_POINTER, _FLOATS, _FLOATS, _FLOAT, _NUMBER, _FLOAT, _NUMBER, _POINTER),
    "sums": (_POINTER, _NUMBER, _NUMBER, _DOUBLES, _NUMBER, _DOUBLES),
    "gram": (_POINTER, _NUMBER, _NUMBER, _DOUBLES),
    "draw_ranked": (_POINTER, _NUMBER, _FLOATS, _UINT32S, _BYTES),
    "count_near_limits": (_POINTER, *[_NUMBER] * 4, *[_INT64S] * 5, *[_INT32S] * 3),
    "are_usable": (_NUMBER, _BYTES, _NUMBER),
    "take_runs": (_POINTER, _NUMBER, _INT64S, _INT64S, _NUMBER, _FLOATS),
    "read_file": (_BYTES, _NUMBER, _NUMBER, _NUMBER),
}


class KernelsMissingError(Exception):
    """Compiled kernels that this installation or this processor does not have, with reason and remedy."""


class KernelsUnusableError(KernelsMissingError):
    """Compiled kernels that exist but cannot be loaded, or were built from another source."""


class KernelLibrary(NamedTuple):
    """The loaded kernels for one level of processors, by their names."""

    level: str
    functions: dict[str, Any]

    @property
    def processor(self) -> str:
        """The processors that the kernels were compiled for, such as x86-64-v4."""
        return self.level if self.level == "arm64" else f"x86-64-{self.level}"

    def call(self, name: str, *arguments: Any) -> int:
        """Run a kernel with arguments as in `native/row_kernels.c`, and return its result.

        Raises:
            MemoryError: if the kernel gets no memory.
            ctypes.ArgumentError: if an array has another dtype than the kernel reads, or gaps.
        """
        code: int = self.functions[name](*arguments)
        if code == _NO_MEMORY:
            raise MemoryError
        return code


class BaseUse(IntEnum):
    """The use of the base's rows: none, subtracted from the models', or for conversions of deltas."""

    WITHOUT_BASE = 0
    MINUS_BASE = 1
    BASE_KNOWN = 2


class RowsStruct(ctypes.Structure):
    """The kernels' view of rows of several models and of the recorded changes of their deltas.

    Of each model and, last, of the base, `places` has the kind of its numbers, the first number in memory,
    the handle and position of its file, and its number. `base_use` is a `BaseUse`. `codes` [changes] are
    indices in CHANGE_KERNELS; changes have `numbers` [changes, models] and `integers` [changes, models, 3].
    """

    _fields_ = (
        *((name, _POINTER) for name in ("memory", "base_memory", "places", "states")),
        *((name, _NUMBER) for name in ("models", "base_use", "is_checked", "size")),
        *((name, _POINTER) for name in ("codes", "numbers", "integers")),
        *((name, _NUMBER) for name in ("changes", "start")),
    )


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
        named = [library.emberge_source, library.emberge_level]
    except (OSError, AttributeError) as error:
        reason = f"the compiled kernels cannot be loaded ({error}): {_REMEDY}"
        raise KernelsUnusableError(reason) from None
    for function in named:
        function.restype = ctypes.c_char_p
    source, level = (function().decode() for function in named)
    if source != build.hash_source():
        reason = f"the compiled kernels were built from another source: {_REMEDY}"
        raise KernelsUnusableError(reason)
    if not level:
        raise KernelsMissingError("this processor has no AVX2, which the compiled kernels need")
    functions = {}
    for name, arguments in _ARGUMENTS.items():
        kernel = functions[name] = library[f"emberge_{name}_{level}"]
        kernel.argtypes, kernel.restype = arguments, ctypes.c_int
    return KernelLibrary(level, functions)


def allows_kernels() -> bool:
    """Return whether a merge may use compiled kernels, if there are any."""
    return os.environ.get(KERNELS_VARIABLE, "") != "never"


def describe_kernels() -> str:
    """Return a line for `check` that says whether merges use compiled kernels, and why."""
    if not allows_kernels():
        return f"plain torch, as {KERNELS_VARIABLE}=never asks for"
    try:
        return f"compiled in C ({load_library().processor})"
    except KernelsMissingError as error:
        return f"plain torch, which is slower, as {error}"

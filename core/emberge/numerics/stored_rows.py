"""Rows of several models in their files' dtypes, decoded when needed; loads no torch."""

from __future__ import annotations

import ctypes
import functools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from emberge.numerics.buffers import take_pooled_array
from emberge.numerics.row_kernels import (
    CHANGE_KERNELS,
    WINDOW_NUMBERS,
    BaseUse,
    KernelLibrary,
    KernelsMissingError,
    KernelsUnusableError,
    RowsStruct,
    load_library,
)

if TYPE_CHECKING:
    from torch import Tensor

KERNEL_DTYPES = ("bfloat16", "float16", "float32")
"""The types that are decoded, in the order of the kernels' numbers."""
ALIGNMENT_BYTES = 64
"""Rows begin at multiples of this number of bytes."""
RUN_LENGTH = 512
"""Neighbouring elements that are sampled together."""
MAGNITUDE_LIMIT = 2.0**64
"""The least number whose square is infinite in float32: no layer can work with such a weight."""
KernelIntegers = tuple[int, int, int]
"""The integers that the kernel of a change takes for one model, such as a limit's pattern, row and quota."""

# More than a chunk of the kernels, and no multiple of a vector.
_TESTED_NUMBERS = 2048 + 37
# States of rows: not read, without NaN or too large values, with such values, in a file that ends too early.
_UNREAD, _USABLE, _UNUSABLE, _UNREADABLE = range(-1, 3)


class RowsError(Exception):
    """Rows of one model, or of the base after the last model, that cannot be used.

    `number` is the model's among all that are read. `is_unreadable` is true if its file could not be read,
    and false if the rows have NaN or too large values.
    """

    def __init__(self, number: int, *, is_unreadable: bool) -> None:
        super().__init__(f"the rows of model {number} cannot be used")
        self.number = number
        self.is_unreadable = is_unreadable


class RowsPlace(NamedTuple):
    """The location of one model's rows: in memory from byte `start` on, or in an open file.

    Rows in the file `handle` begin at byte `position`. Kernels read a window of them at a time to byte
    `start` of the memory. `number` is the model's number.
    """

    dtype: str
    start: int
    number: int
    handle: int = -1
    position: int = 0

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return 4 if self.dtype == "float32" else 2

    def count_memory_bytes(self, size: int) -> int:
        """Return the bytes of memory for `size` numbers, or for a window of them if they are in a file."""
        kept = size if self.handle < 0 else min(size, WINDOW_NUMBERS)
        return -(-kept * self.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class StoredRows:
    """Rows of every model and the base, in memory or in open files; `shape` is that of one model's rows.

    `memory` has the bytes. If `is_checked`, every method raises `RowsError` if the rows that it reads have
    NaN or too large values. Files that cannot be read are always refused. `states` has what is known of each
    model's rows, and last of the base's. If they are merged `without_torch`, results are NumPy arrays and not
    tensors.
    """

    memory: np.ndarray
    models: Sequence[RowsPlace]
    base: RowsPlace | None
    all_places: Sequence[RowsPlace]
    """The places of all models that are read, and last of the base."""
    shape: tuple[int, ...]
    kernels: KernelLibrary
    states: np.ndarray
    is_checked: bool
    size: int
    """The number of elements of one model's rows."""
    without_torch: bool = False
    _read: dict[int, np.ndarray] = field(default_factory=dict)

    dtype = "float32"
    """The dtype of the computation."""

    @classmethod
    def of(
        cls,
        memory: np.ndarray,
        models: Sequence[RowsPlace],
        base: RowsPlace | None,
        shape: tuple[int, ...],
        kernels: KernelLibrary,
        *,
        is_checked: bool,
        without_torch: bool = False,
    ) -> StoredRows:
        """Return rows before anything is read from their files.

        Raises:
            RowsError: if rows in memory are checked and have NaN or too large values.
        """
        states = np.full(len(models) + 1, _UNREAD, np.int64)
        size = math.prod(shape)
        places = (*models, base) if base is not None else tuple(models)
        rows = cls(
            memory, models, base, places, shape, kernels, states, is_checked, size, without_torch
        )
        for place in rows.all_places:
            if place.handle < 0:
                rows._view_flat(place)
        return rows

    @property
    def count(self) -> int:
        """The number of models."""
        return len(self.models)

    @property
    def has_base(self) -> bool:
        """True if the base's rows are known."""
        return self.base is not None

    def pick(self, indices: Sequence[int]) -> StoredRows:
        """Return the rows of some of the models."""
        return replace(self, models=[self.models[i] for i in indices])

    def decode(self) -> Tensor:
        """Return the models' rows in float32, [models, *rows]."""
        return self._decode(self.models, (len(self.models), *self.shape))

    def decode_base(self) -> Tensor | None:
        """Return the base's rows in float32."""
        if self.base is None:
            return None
        return self._decode([self.base], self.shape)

    def _decode(self, places: Sequence[RowsPlace], shape: tuple[int, ...]) -> Tensor:
        import torch

        out = torch.from_numpy(take_pooled_array(shape, np.float32))
        for place, into in zip(places, out.view(len(places), self.size), strict=True):
            stored = torch.from_numpy(self._view_flat(place))
            into.copy_(stored.view(getattr(torch, place.dtype)))
        return out

    def take_runs(self, stride: int, start: int) -> StoredRows:
        """Return a sample as one row: of each `stride` runs of RUN_LENGTH elements the first.

        The sample is not checked for NaN, and nothing else is read from files. `start` is the number of the
        tensor's elements before these rows.
        """
        begins, ends = list_runs(start, self.size, stride)
        count, models = int((ends - begins).sum()), len(self.models)
        step = -(-4 * count // ALIGNMENT_BYTES) * ALIGNMENT_BYTES // 4
        memory: np.ndarray = np.empty((models + 1, step), np.float32)
        KernelRows.of(self, base_use=BaseUse.BASE_KNOWN).call(
            "take_runs", len(begins), begins, ends, step, memory
        )
        places = [RowsPlace("float32", 4 * m * step, m) for m in range(models + 1)]
        base = None if self.base is None else places[-1]
        return StoredRows.of(
            memory.reshape(-1).view(np.uint8),
            places[:-1],
            base,
            (count,),
            self.kernels,
            is_checked=False,
            without_torch=self.without_torch,
        )

    def require_usable(self) -> None:
        """Require that every read so far succeeded, and gave neither NaN nor too large values.

        Raises:
            RowsError: for the first model whose rows cannot be used.
        """
        for number, state in enumerate(self.states.tolist()):
            if state > _USABLE:
                raise RowsError(number, is_unreadable=state == _UNREADABLE)

    def check_rest(self) -> None:
        """Read and check the rows that nothing has read so far, if they are checked.

        Raises:
            RowsError: if they have NaN or too large values.
        """
        if not (self.is_checked and self.size):
            return
        for place in self.all_places:
            if self.states[place.number] == _UNREAD:
                self._view_flat(place)

    def _view_flat(self, rows_place: RowsPlace) -> np.ndarray:
        """Return the bytes of a model's stored rows, which are read and checked at the first call."""
        size = self.size * rows_place.itemsize
        if rows_place.handle < 0:
            stored = self.memory[rows_place.start : rows_place.start + size]
        elif rows_place.number in self._read:
            stored = self._read[rows_place.number]
        else:
            stored = self._read[rows_place.number] = take_pooled_array((size,), np.uint8)
            if not self.kernels.call(
                "read_file", stored, size, rows_place.handle, rows_place.position
            ):
                self.states[rows_place.number] = _UNREADABLE
        if self.states[rows_place.number] == _UNREAD:
            is_usable = not self.is_checked or are_usable(stored, rows_place.dtype, self.kernels)
            self.states[rows_place.number] = _USABLE if is_usable else _UNUSABLE
        self.require_usable()
        return stored


class DeltaChange(Protocol):
    """A recorded change of deltas, which depends on each element's values and its position in the tensor."""

    @property
    def kernel(self) -> str:
        """The compiled kernel that makes this change, one of `CHANGE_KERNELS`.

        A change without a kernel ("") is made by torch as soon as it is recorded.
        """

    def apply(self, deltas: Tensor, start: int) -> Tensor:
        """Change deltas [models, *rows] with torch, in place where possible, and return them.

        `start` is the position of the first element in the tensor.
        """

    def list_kernel_arguments(self) -> Sequence[tuple[float, KernelIntegers]]:
        """Return the arguments of this change's kernel for each model: one float32 and three int64."""


@dataclass(frozen=True, slots=True, eq=False)
class KernelRows:
    """Rows of several models, or their deltas with recorded changes, as compiled kernels read them.

    `count` is the number of models after the changes. Rows merged into bfloat16 are stored as its words if
    `merged_dtype` asks for it, and otherwise as float32.
    """

    stored: StoredRows
    count: int
    start: int
    merged_dtype: str
    struct: RowsStruct
    kept_arrays: tuple[object, ...]
    """The arrays whose addresses `struct` has."""

    @classmethod
    def of(
        cls,
        stored: StoredRows,
        changes: Sequence[DeltaChange] = (),
        deltas: Tensor | np.ndarray | None = None,
        start: int = 0,
        *,
        base_use: BaseUse,
        merged_dtype: str = "float32",
    ) -> KernelRows:
        """Build the kernels' view of `deltas` or, without deltas, of the stored rows."""
        base = stored.base or RowsPlace("bfloat16", 0, len(stored.models))
        models: Sequence[RowsPlace] = stored.models
        memory = stored.memory
        if deltas is not None:
            memory = np.ascontiguousarray(deltas)
            models = [RowsPlace("float32", 4 * m * stored.size, 0) for m in range(len(deltas))]
        count, arguments = len(models), [change.list_kernel_arguments() for change in changes]
        dtypes = {dtype: code for code, dtype in enumerate(KERNEL_DTYPES)}
        arrays = {
            "memory": memory,
            "base_memory": stored.memory,
            "places": np.array(
                [
                    (dtypes[p.dtype], p.start // p.itemsize, p.handle, p.position, p.number)
                    for p in (*models, base)
                ],
                np.int64,
            ),
            "states": stored.states,
            "codes": np.array(
                [CHANGE_KERNELS.index(change.kernel) for change in changes], np.int64
            ),
            "numbers": np.array([[number for number, _ in one] for one in arguments], np.float32),
            "integers": np.array(
                [[integers for _, integers in one] for one in arguments], np.int64
            ),
        }
        struct = RowsStruct(
            **{name: array.ctypes.data for name, array in arrays.items()},
            models=count,
            base_use=base_use if stored.base is not None else BaseUse.WITHOUT_BASE,
            is_checked=stored.is_checked,
            size=stored.size,
            changes=len(changes),
            start=start,
        )
        if any(change.kernel == "variance" for change in changes):
            count = 1
        return cls(stored, count, start, merged_dtype, struct, (arrays, changes))

    @property
    def size(self) -> int:
        """The number of elements of one model's rows."""
        return self.stored.size

    def call(self, kernel: str, *arguments: Any) -> None:
        """Run a kernel on the rows with further arguments.

        Raises:
            RowsError: if rows that the kernel read cannot be used.
        """
        self.stored.kernels.call(kernel, ctypes.addressof(self.struct), *arguments)
        self.stored.require_usable()

    def merge(self, kernel: str, *arguments: Any) -> Tensor | np.ndarray:
        """Run a kernel that merges the rows, and return the merged rows, shaped like one model's."""
        is_narrow = self.merged_dtype == "bfloat16"
        merged = take_pooled_array(self.stored.shape, np.uint16 if is_narrow else np.float32)
        dtype_code = KERNEL_DTYPES.index("bfloat16" if is_narrow else "float32")
        self.call(kernel, *arguments, dtype_code, merged.ctypes.data)
        return merged if self.stored.without_torch else as_tensor(merged)

    def decode(self) -> np.ndarray:
        """Return the rows after their changes, float32 [models, *rows]."""
        decoded = take_pooled_array((self.count, *self.stored.shape), np.float32)
        self.call("decode", decoded)
        return decoded


def list_runs(start: int, size: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where every `stride`-th run of a tensor begins and ends within rows, int64 [runs] each.

    The rows are the `size` elements of the tensor from `start` on.
    """
    first = -(-(start // RUN_LENGTH) // stride) * stride
    begins = (
        np.arange(first * RUN_LENGTH, start + size, stride * RUN_LENGTH, dtype=np.int64) - start
    )
    return begins.clip(0, size), (begins + RUN_LENGTH).clip(0, size)


def as_tensor(rows: Tensor | np.ndarray) -> Tensor:
    """Return rows as a tensor, without a copy; words of uint16 are numbers in bfloat16."""
    import torch

    if not isinstance(rows, np.ndarray):
        return rows
    if rows.dtype == np.uint16:
        return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(rows)


def are_usable(stored: np.ndarray, dtype: str, kernels: KernelLibrary) -> bool:
    """Return whether flat bytes have neither NaN nor numbers from MAGNITUDE_LIMIT on.

    `dtype` is one of KERNEL_DTYPES; for float16 only infinity is too large.
    """
    count = stored.size // (4 if dtype == "float32" else 2)
    return bool(kernels.call("are_usable", KERNEL_DTYPES.index(dtype), stored, count))


def encode_rows(values: Tensor | np.ndarray, dtype: str) -> Tensor | np.ndarray:
    """Return merged rows in the form to store: contiguous, on the CPU.

    A tensor stays a tensor. An array stays an array; words of bfloat16 (uint16) are returned as they are.
    """
    if not isinstance(values, np.ndarray):
        import torch

        return values.to(dtype=getattr(torch, dtype)).cpu().contiguous()
    if dtype != "float16":
        return values
    with np.errstate(over="ignore"):  # infinity is refused with the tensor's name
        return values.astype(np.float16)


@functools.cache
def load_kernels() -> KernelLibrary | None:
    """Return the compiled kernels; None if there are none, or if a small sum by them is wrong.

    If kernels exist and cannot be used, Python warns.
    """
    try:
        library = load_library()
        if _adds_exactly(library):
            return library
        reason = "the compiled kernels add up wrongly on this machine"
    except KernelsUnusableError as error:
        reason = str(error)
    except KernelsMissingError:
        return None
    warnings.warn(
        f"{reason}; merging by plain torch, which is slower", RuntimeWarning, stacklevel=2
    )
    return None


def _adds_exactly(library: KernelLibrary) -> bool:
    """Return whether kernels add changes of two models to a base as NumPy does; all sums are exact."""
    size = _TESTED_NUMBERS
    numbers = (np.arange(3 * size, dtype=np.float32).reshape(3, size) % 251 - 125) / 8
    # bfloat16 is the upper half of float32.
    memory = (numbers.view(np.uint32) >> 16).astype(np.uint16).reshape(-1).view(np.uint8)
    places = [RowsPlace("bfloat16", 2 * size * m, m) for m in range(3)]
    rows = StoredRows.of(
        memory, places[:2], places[2], (size,), library, is_checked=True, without_torch=True
    )
    merged = KernelRows.of(rows, base_use=BaseUse.MINUS_BASE).merge(
        "combine", np.array([0.5, 0.25], np.float32), True
    )
    return np.array_equal(merged, 0.5 * numbers[0] + 0.25 * numbers[1] + 0.25 * numbers[2])

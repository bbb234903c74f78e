"""Rows of several models in their files' dtypes, decoded when needed; loads no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from emberge.numerics.buffers import pooled_array

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = ("bfloat16", "float16", "float32")
"""The types that are decoded, in the order of the kernels' numbers."""
ALIGNED = 64
"""Rows begin at multiples of this number of bytes."""
WINDOW = 1 << 16
"""Numbers of a model that kernels read from its file at once (`row_kernels.WINDOW`)."""
RUN = 512
"""Neighbouring elements that are sampled together."""
TOO_LARGE = 2.0**64
"""The least number whose square is infinite in float32: no layer can work with such a weight."""

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


class Place(NamedTuple):
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

    def memory_bytes(self, size: int) -> int:
        """Return the bytes of memory for `size` numbers, or for a window of them if they are in a file."""
        kept = size if self.handle < 0 else min(size, WINDOW)
        return -(-kept * self.itemsize // ALIGNED) * ALIGNED


@dataclass(frozen=True, slots=True, eq=False)
class StoredRows:
    """Rows of every model and the base, in memory or in open files; `shape` is that of one model's rows.

    `memory` is of bytes, and `kernels` is the module of compiled kernels. If `is_checked`, every method
    raises `RowsError` if the rows that it reads have NaN or too large values. Files that cannot be read are
    always refused. `states` has what is known of each model's rows, and last of the base's. If they are
    merged `without_torch`, results are NumPy arrays and not tensors.
    """

    memory: np.ndarray
    models: Sequence[Place]
    base: Place | None
    shape: tuple[int, ...]
    kernels: Any
    states: np.ndarray
    is_checked: bool
    without_torch: bool = False
    _read: dict[int, np.ndarray] = field(default_factory=dict)

    dtype = "float32"
    """The dtype of the computation."""

    @classmethod
    def of(
        cls,
        memory: np.ndarray,
        models: Sequence[Place],
        base: Place | None,
        shape: tuple[int, ...],
        kernels: Any,
        *,
        is_checked: bool,
        without_torch: bool = False,
    ) -> StoredRows:
        """Return rows before anything is read from their files.

        Raises:
            RowsError: if rows in memory are checked and have NaN or too large values.
        """
        states = np.full(len(models) + 1, _UNREAD, np.int64)
        rows = cls(memory, models, base, shape, kernels, states, is_checked, without_torch)
        for place in rows._list_places():
            if place.handle < 0:
                states[place.number] = rows._check(rows._view_bytes(place), place)
        rows.require_usable()
        return rows

    @property
    def count(self) -> int:
        """The number of models."""
        return len(self.models)

    @property
    def size(self) -> int:
        """The number of elements of one model's rows."""
        return math.prod(self.shape)

    @property
    def has_base(self) -> bool:
        """True if the base's rows are known."""
        return self.base is not None

    def pick(self, index: Sequence[int]) -> StoredRows:
        """Return the rows of some of the models."""
        return replace(self, models=[self.models[i] for i in index])

    def decode(self) -> Tensor:
        """Return the models' rows in float32, [models, *rows]."""
        return self._decode(self.models, (len(self.models), *self.shape))

    def decode_base(self) -> Tensor | None:
        """Return the base's rows in float32."""
        if self.base is None:
            return None
        return self._decode([self.base], self.shape)

    def _decode(self, places: Sequence[Place], shape: tuple[int, ...]) -> Tensor:
        import torch

        out = torch.from_numpy(pooled_array(shape, np.float32))
        for place, into in zip(places, out.view(len(places), self.size), strict=True):
            stored = torch.from_numpy(self._view_flat(place))
            into.copy_(stored.view(getattr(torch, place.dtype)))
        return out

    def take_runs(self, stride: int, start: int) -> StoredRows:
        """Return every `stride`-th run of the tensor's elements, as one row in memory that is not checked.

        `start` is the number of the tensor's elements before these rows. Of rows in files nothing else is
        read.
        """
        begins, ends = list_runs(start, self.size, stride)
        count, models = int((ends - begins).sum()), len(self.models)
        step = -(-4 * count // ALIGNED) * ALIGNED // 4
        memory: np.ndarray = np.empty((models + 1, step), np.float32)
        rows = self.kernel_rows(None, subtract=False, with_base=True)
        self.kernels.take_runs(rows, begins, ends, memory)
        self.require_usable()
        places = [Place("float32", 4 * m * step, m) for m in range(models + 1)]
        return StoredRows.of(
            memory.reshape(-1).view(np.uint8),
            places[:-1],
            None if self.base is None else places[-1],
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
        for place in self._list_places():
            if self.states[place.number] == _UNREAD:
                self._view_flat(place)

    def kernel_rows(
        self, deltas: Tensor | np.ndarray | None, *, subtract: bool, with_base: bool = False
    ) -> Any:
        """Return the kernels' view of `deltas`, or of the rows (minus the base if `subtract`).

        The base itself is known to the kernel with `deltas`, `subtract` or `with_base`.
        """
        base = self.base or Place("bfloat16", 0, len(self.models))
        based = 0
        if self.base is not None:
            based = 1 if subtract else 2 if with_base or deltas is not None else 0
        memory, places = self.memory, self._list_kernel_places(self.models, base)
        if deltas is not None:
            memory = np.ascontiguousarray(deltas)
            given = [Place("float32", 4 * m * self.size, 0) for m in range(len(deltas))]
            places = self._list_kernel_places(given, base)
        return self.kernels.KernelRows.of(
            memory,
            self.memory,
            places,
            self.states,
            based=based,
            is_checked=self.is_checked,
            size=self.size,
        )

    def _list_kernel_places(self, models: Sequence[Place], base: Place) -> np.ndarray:
        """Return kind, first number in memory, handle, position and number of each place, [5, places]."""
        places = (*models, base)
        columns = (
            [DTYPES.index(place.dtype) for place in places],
            [place.start // place.itemsize for place in places],
            [place.handle for place in places],
            [place.position for place in places],
            [place.number for place in places],
        )
        return np.array(columns, np.int64)

    def _list_places(self) -> list[Place]:
        return [*self.models, *([self.base] if self.base is not None else [])]

    def _view_flat(self, place: Place) -> np.ndarray:
        """Return the bytes of a model's stored rows, which are read from their file at the first call."""
        if place.handle < 0:
            return self._view_bytes(place)
        if place.number not in self._read:
            rows = pooled_array((self.size * place.itemsize,), np.uint8)
            if not self.kernels.read_file(rows, place.handle, place.position):
                raise RowsError(place.number, is_unreadable=True)
            self._read[place.number] = rows
            self.states[place.number] = self._check(rows, place)
            self.require_usable()
        return self._read[place.number]

    def _view_bytes(self, place: Place) -> np.ndarray:
        return self.memory[place.start : place.start + self.size * place.itemsize]

    def _check(self, rows: np.ndarray, place: Place) -> int:
        """Return the state of a model's stored bytes."""
        if not self.is_checked or words_are_usable(rows, place.dtype, self.kernels):
            return _USABLE
        return _UNUSABLE


def list_runs(start: int, size: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where every `stride`-th run of a tensor begins and ends within rows, int64 [runs] each.

    The rows are the `size` elements of the tensor from `start` on.
    """
    first = -(-(start // RUN) // stride) * stride
    begins = np.arange(first * RUN, start + size, stride * RUN, dtype=np.int64) - start
    return begins.clip(0, size), (begins + RUN).clip(0, size)


def words_are_usable(stored: np.ndarray, dtype: str, kernels: Any) -> bool:
    """Return whether numbers stored in one of DTYPES, flat bytes, are neither NaN nor TOO_LARGE.

    For float16 only infinity is too large.
    """
    return bool(kernels.are_usable(DTYPES.index(dtype), stored))


def encode(values: Tensor | np.ndarray, dtype: str, *, kernels: Any = None) -> Tensor | np.ndarray:
    """Return the values in the form to store: contiguous, on the CPU.

    A tensor stays a tensor. An array of float32, which needs kernels, stays an array, of words (uint16) for
    bfloat16; such words are returned as they are.
    """
    if isinstance(values, np.ndarray):
        return _encode_array(values, dtype, kernels)
    import torch

    stored_dtype = getattr(torch, dtype)
    use_torch = kernels is None or dtype != "bfloat16" or values.dtype != torch.float32
    if use_torch or values.device.type != "cpu":
        return values.to(dtype=stored_dtype).cpu().contiguous()
    words = _encode_array(values.contiguous().numpy(), dtype, kernels)
    return torch.from_numpy(words.view(np.int16)).view(stored_dtype)


def _encode_array(values: np.ndarray, dtype: str, kernels: Any) -> np.ndarray:
    if values.dtype == np.uint16:
        return values
    if dtype == "bfloat16":
        out = pooled_array(values.shape, np.uint16)
        kernels.encode(values.reshape(-1), out.reshape(-1))
        return out
    if dtype == "float16":
        with np.errstate(over="ignore"):  # infinity is refused with the tensor's name
            return values.astype(np.float16)
    return values

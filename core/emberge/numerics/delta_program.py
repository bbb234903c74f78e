"""Rows of several models with recorded changes of their deltas, applied when a result is needed.

The module loads no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from emberge.numerics.buffers import take_tensor_like
from emberge.numerics.noise import draw_uniform
from emberge.numerics.row_kernels import BaseUse
from emberge.numerics.stored_rows import DeltaChange, KernelRows, StoredRows, as_tensor, list_runs

if TYPE_CHECKING:
    from torch import Tensor

Key = tuple[object, ...]


class Operation(Protocol):
    """A computation over rows of several models, with a form in torch and a form by a compiled kernel.

    Both forms give the same bytes.
    """

    @property
    def of_deltas(self) -> bool:
        """True if the kernel gets the models' deltas from the base, and not the models' rows."""

    def by_torch(self, rows: DeltaProgram) -> Any:
        """Return the result, computed from tensors."""

    def by_kernels(self, rows: KernelRows) -> Any:
        """Return the result, computed by a kernel from the rows as they are stored."""


@dataclass(frozen=True, slots=True)
class NoRows:
    """The shape of models' rows, without any rows, for work that only needs weights and options.

    `count` is the number of models, and `dtype` the name of the computation's dtype.
    """

    count: int
    shape: tuple[int, ...]
    dtype: str
    has_base: bool

    size = 0

    def decode(self) -> Tensor:
        """Return a tensor of no rows, [models, 0, …]."""
        import torch

        return torch.empty((self.count, 0, *self.shape[1:]), dtype=getattr(torch, self.dtype))

    def decode_base(self) -> Tensor | None:
        """Return a tensor of no rows, [0, …]; None without a base."""
        return self.decode()[0] if self.has_base else None

    def pick(self, indices: Sequence[int]) -> NoRows:
        """Return no rows of some of the models."""
        return replace(self, count=len(indices))

    def take_runs(self, stride: int, start: int) -> NoRows:
        """Return no rows."""
        return replace(self, shape=(0,))


@dataclass(frozen=True, slots=True, eq=False)
class DecodedRows:
    """Rows of every model [models, *rows] and of the base, as tensors of one dtype and device."""

    models: Tensor
    base: Tensor | None

    @property
    def count(self) -> int:
        """The number of models."""
        return len(self.models)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one model's rows."""
        return tuple(self.models.shape[1:])

    @property
    def size(self) -> int:
        """The number of elements of one model's rows."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> str:
        """The name of the dtype used for computing."""
        return str(self.models.dtype).removeprefix("torch.")

    @property
    def has_base(self) -> bool:
        """True if the base's rows are known."""
        return self.base is not None

    def decode(self) -> Tensor:
        """Return the models' rows."""
        return self.models

    def decode_base(self) -> Tensor | None:
        """Return the base's rows."""
        return self.base

    def pick(self, indices: Sequence[int]) -> DecodedRows:
        """Return the rows of some of the models."""
        return DecodedRows(_pick_models(self.models, indices), self.base)

    def take_runs(self, stride: int, start: int) -> DecodedRows:
        """Return every `stride`-th run of the tensor's elements, as one row."""
        base = None if self.base is None else _take_runs(self.base[None], stride, start)[0]
        return DecodedRows(_take_runs(self.models, stride, start), base)


@dataclass(eq=False)
class DeltaProgram:
    """Rows as read, and the recorded changes of the models' deltas (differences from the base).

    Results are computed by kernels if the rows are stored in a form that they read, else by torch, with the
    same bytes. `start` is the number of the tensor's elements before these rows.

    A program has the rows as they are; or `shares`, and each model is the sum of the rows times its factors;
    or deltas: those of the rows or `replaced_deltas`, to which `changes` are then applied.
    """

    rows: StoredRows | DecodedRows | NoRows
    start: int = 0
    shares: tuple[tuple[float, ...], ...] = ()
    replaced_deltas: Tensor | np.ndarray | None = None
    changes: tuple[DeltaChange, ...] = ()
    unchanged_program: DeltaProgram | None = None
    """The program before its changes of deltas; None if there are none."""

    @property
    def is_changed(self) -> bool:
        """True if deltas were given or changed since the rows were read."""
        return self.replaced_deltas is not None or bool(self.changes)

    @property
    def original(self) -> DeltaProgram:
        """The program before its changes of deltas: this one if there are none."""
        return self.unchanged_program or self

    @property
    def size(self) -> int:
        """The number of elements of one model's rows."""
        return self.rows.size

    @property
    def dtype(self) -> str:
        """The name of the dtype used for computing."""
        return self.rows.dtype

    @property
    def has_base(self) -> bool:
        """True if the base's rows are known, without decoding them."""
        return self.rows.has_base

    @cached_property
    def base(self) -> Tensor | None:
        """The base's rows."""
        return self.rows.decode_base()

    @cached_property
    def tensors(self) -> Tensor:
        """The models' rows [models, *rows]; base + delta if deltas were changed."""
        if self.is_changed:
            return self.require_base() + self.deltas
        rows = self.rows.decode()
        if not self.shares:
            return rows
        out = take_tensor_like(rows, (len(self.shares), *rows.shape[1:]))
        for factors, into in zip(self.shares, out, strict=True):
            used_models = [i for i, factor in enumerate(factors) if factor] or [0]
            used_rows = slice(used_models[0], used_models[-1] + 1)
            compute_weighted_sum(factors[used_rows], rows[used_rows], into)
        return out

    @property
    def deltas(self) -> Tensor:
        """Each model minus the base, [models, *rows]; read-only for callers."""
        return self._changed_deltas if self.is_changed else self._copy_deltas()

    @cached_property
    def _changed_deltas(self) -> Tensor:
        """The deltas after all changes, cached, as base + delta - base would be rounded twice."""
        if self.replaced_deltas is not None and not self.changes:
            return as_tensor(self.replaced_deltas)
        if (kernel_rows := self.take_kernel_rows(of_deltas=True)) is not None:
            return as_tensor(kernel_rows.decode())
        unchanged = self.original
        if self.replaced_deltas is not None:
            unchanged = self.with_deltas(self.replaced_deltas)
        deltas = unchanged._copy_deltas()
        for change in self.changes:
            deltas = change.apply(deltas, self.start)
        return deltas

    def _copy_deltas(self) -> Tensor:
        """Return the deltas in memory that the caller may write into."""
        if self.is_changed:
            return take_tensor_like(self._changed_deltas).copy_(self._changed_deltas)
        if (kernel_rows := self.take_kernel_rows(of_deltas=True)) is not None:
            return as_tensor(kernel_rows.decode())
        import torch

        return torch.sub(self.tensors, self.require_base(), out=take_tensor_like(self.tensors))

    def decode_deltas(self) -> Tensor | np.ndarray:
        """Return the deltas, as an array if kernels decode them."""
        kernel_rows = self.take_kernel_rows(of_deltas=True)
        return self.deltas if kernel_rows is None else kernel_rows.decode()

    def require_base(self) -> Tensor:
        """Return the base's rows.

        Raises:
            ValueError: if the block has no base.
        """
        if self.base is None:
            raise ValueError("this stage needs a base")
        return self.base

    def uniform(self, keys: Sequence[Key]) -> Tensor:
        """Return a random number in [0, 1) for each element: a hash of its model's key and its position."""
        like = self.deltas if self.is_changed else self.tensors
        return draw_uniform(like, self.start, keys)

    def take_kernel_rows(
        self, *, of_deltas: bool, merged_dtype: str = "float32"
    ) -> KernelRows | None:
        """Return the kernels' view of the rows or the deltas; None if torch has to compute with them."""
        rows, deltas = self.rows, self.replaced_deltas
        if not isinstance(rows, StoredRows) or self.shares:
            return None
        if not of_deltas:
            if self.is_changed:
                return None
            base_use = BaseUse.WITHOUT_BASE
        elif rows.base is None or (deltas is not None and not _are_readable(deltas)):
            return None
        else:
            base_use = BaseUse.MINUS_BASE if deltas is None else BaseUse.BASE_KNOWN
        return KernelRows.of(
            rows, self.changes, deltas, self.start, base_use=base_use, merged_dtype=merged_dtype
        )

    def record(self, change: DeltaChange) -> DeltaProgram:
        """Return the program with one more change of the deltas; reading them without a base is an error."""
        if not change.kernel:
            return self.with_deltas(change.apply(self._copy_deltas(), self.start))
        return DeltaProgram(
            self.rows,
            self.start,
            # Kernels read the deltas of single models alone.
            replaced_deltas=self.deltas if self.shares else self.replaced_deltas,
            changes=(*self.changes, change),
            unchanged_program=self.original,
        )

    def with_deltas(self, deltas: Tensor | np.ndarray) -> DeltaProgram:
        """Return the program with its deltas replaced by `deltas`, for the same number of models."""
        return DeltaProgram(
            self.rows, self.start, replaced_deltas=deltas, unchanged_program=self.original
        )

    def with_tensors(self, tensors: Tensor) -> DeltaProgram:
        """Return a program for other rows [models, *rows] and the same base, without changes."""
        return DeltaProgram(DecodedRows(tensors, self.base), self.start)

    def with_sums(self, shares: Sequence[Sequence[float]]) -> DeltaProgram:
        """Return a program whose models are weighted sums of these models, computed when needed."""
        factors = tuple(tuple(map(float, one)) for one in shares)
        return DeltaProgram(self._as_read().rows, self.start, shares=factors)

    def without_sums(self) -> DeltaProgram:
        """Return the program of the rows as they were read, before they were summed."""
        return DeltaProgram(self.rows, self.start)

    def pick(self, indices: Sequence[int]) -> DeltaProgram:
        """Return a program for some of the models, given by their indices in ascending order."""
        if self.is_changed:
            deltas = _pick_models(self.deltas, indices)
            return DeltaProgram(self.rows, self.start, replaced_deltas=deltas)
        return DeltaProgram(self._as_read().rows.pick(indices), self.start)

    def take_runs(self, stride: int) -> DeltaProgram:
        """Return a program for every `stride`-th run of the tensor's elements, as one row."""
        if not self.is_changed:
            return DeltaProgram(self._as_read().rows.take_runs(stride, self.start), self.start)
        runs = _take_runs(self.decode_deltas(), stride, self.start)
        return DeltaProgram(
            self.rows.take_runs(stride, self.start), self.start, replaced_deltas=runs
        )

    def _as_read(self) -> DeltaProgram:
        """Return the program, with its models' rows in memory if they are sums or were changed."""
        is_plain = not (self.is_changed or self.shares)
        return self if is_plain else self.with_tensors(self.tensors)

    def check_rest(self) -> None:
        """Check the rows that were not read so far for NaN and too large values, if rows are checked.

        Raises:
            RowsError: if they have such values.
        """
        if isinstance(self.rows, StoredRows):
            self.rows.check_rest()

    def without_rows(self) -> DeltaProgram:
        """Return a program without rows, for work that only needs weights and options."""
        rows, count = self.rows, len(self.shares) or self.rows.count
        return DeltaProgram(NoRows(count, rows.shape, rows.dtype, rows.has_base))


def compute_weighted_sum(
    coefficients: Sequence[float], vectors: Tensor, out: Tensor | None = None
) -> Tensor:
    """Return Σ coefficient × vector of [n, *rows], added in order by one fused step each."""
    import torch

    require_count(coefficients, len(vectors))
    total = take_tensor_like(vectors[0]) if out is None else out
    torch.mul(vectors[0], coefficients[0], out=total)
    for value, vector in zip(coefficients[1:], vectors[1:], strict=True):
        total.add_(vector, alpha=value)
    return total


def require_count(coefficients: Sized, models: int) -> None:
    """Require one coefficient for each model.

    Raises:
        ValueError: if there are more or fewer.
    """
    if len(coefficients) != models:
        raise ValueError(f"{len(coefficients)} coefficients for {models} models")


def _are_readable(deltas: Tensor | np.ndarray) -> bool:
    """Return whether kernels can read deltas that replaced those of the rows."""
    if isinstance(deltas, np.ndarray):
        return deltas.dtype == np.float32 and deltas.flags.c_contiguous
    is_single = deltas.device.type == "cpu" and str(deltas.dtype) == "torch.float32"
    return is_single and deltas.is_contiguous()


def _pick_models(values: Tensor, indices: Sequence[int]) -> Tensor:
    """Return some models of [models, …], without a copy if they are consecutive."""
    first, last = indices[0], indices[-1]
    return values[first : last + 1] if last - first + 1 == len(indices) else values[list(indices)]


def _take_runs(values: Any, stride: int, start: int) -> Any:
    """Return every `stride`-th run of [models, *rows], whose first element is number `start`, [models, k]."""
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    begins, ends = list_runs(start, flat.shape[1], stride)
    runs = [
        flat[:, :0],
        *(flat[:, a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)),
    ]
    if isinstance(values, np.ndarray):
        return np.concatenate(runs, axis=1)
    import torch

    return torch.cat(runs, 1)

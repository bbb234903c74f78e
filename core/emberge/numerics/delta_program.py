"""Rows of several models with recorded changes of their deltas, applied when a result is needed.

The module loads no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from emberge.numerics.buffers import pooled_like
from emberge.numerics.delta_changes import DeltaChange, DropAtRandom, KeepDrawn
from emberge.numerics.evaluations import (
    Evaluation,
    KernelEvaluation,
    as_tensor,
    inner_products,
)
from emberge.numerics.noise import SPAN, Line, chances_of, draw_ranked, uniform
from emberge.numerics.stored_rows import StoredRows, list_runs

if TYPE_CHECKING:
    from torch import Tensor

Key = tuple[object, ...]


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
        """Return a tensor of no rows, [0, …]."""
        return self.decode()[0] if self.has_base else None

    def pick(self, index: Sequence[int]) -> NoRows:
        """Return no rows of some of the models."""
        return replace(self, count=len(index))

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

    def pick(self, index: Sequence[int]) -> DecodedRows:
        """Return the rows of some of the models."""
        return DecodedRows(_pick_models(self.models, index), self.base)

    def take_runs(self, stride: int, start: int) -> DecodedRows:
        """Return every `stride`-th run of the tensor's elements, as one row."""
        base = None if self.base is None else _take_runs(self.base[None], stride, start)[0]
        return DecodedRows(_take_runs(self.models, stride, start), base)


@dataclass(eq=False)
class DeltaProgram:
    """Rows as read, and the recorded changes of the models' deltas (differences from the base).

    Results are computed by kernels if the rows are stored in a form that they read, else by torch, with the
    same bytes. `start` is the number of the tensor's elements before these rows. With `shares`, each model is
    the sum of the rows times its factors. `replaced_deltas` are deltas that replace those of the rows;
    `changes` are then applied to them.
    """

    rows: StoredRows | DecodedRows | NoRows
    start: int = 0
    shares: tuple[tuple[float, ...], ...] = ()
    replaced_deltas: Tensor | np.ndarray | None = None
    changes: tuple[DeltaChange, ...] = ()
    unchanged_program: DeltaProgram | None = None
    """The program without its changes of deltas."""
    chances: Tensor | Callable[[], Tensor] | None = None
    """The probability with which each delta was kept, or its computation, after a random drop."""

    @classmethod
    def empty(cls, models: int, shape: tuple[int, ...], dtype: str, *, based: bool) -> DeltaProgram:
        """Return a program without rows; `shape` is that of one model's."""
        return cls(NoRows(models, shape, dtype, based))

    @property
    def is_changed(self) -> bool:
        """True if deltas were given or changed since the rows were read."""
        return self.replaced_deltas is not None or bool(self.changes)

    @property
    def original(self) -> DeltaProgram:
        """The program without its changes of deltas."""
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

    # ── numbers ──────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def base(self) -> Tensor | None:
        """The base's rows."""
        return self.rows.decode_base()

    @cached_property
    def tensors(self) -> Tensor:
        """The models' rows [models, *rows]; base + delta if deltas were changed."""
        if self.is_changed:
            return self.require_base() + self.deltas
        if not self.shares:
            return self.rows.decode()
        rows = self.rows.decode()
        from emberge.numerics.torch_evaluation import weighted_sum

        out = pooled_like(rows, (len(self.shares), *rows.shape[1:]))
        for factors, into in zip(self.shares, out, strict=True):
            used_models = [i for i, factor in enumerate(factors) if factor] or [0]
            used_rows = slice(used_models[0], used_models[-1] + 1)
            weighted_sum(factors[used_rows], rows[used_rows], into)
        return out

    @property
    def deltas(self) -> Tensor:
        """Each model minus the base, [models, *rows]; read-only for callers."""
        return self._changed_deltas if self.is_changed else self._copy_deltas()

    def copy_deltas(self) -> Tensor:
        """Return a copy of the deltas that the caller may overwrite."""
        return _copy_of(self._changed_deltas) if self.is_changed else self._copy_deltas()

    @cached_property
    def _changed_deltas(self) -> Tensor:
        """The deltas after all changes, cached, as base + delta - base would be rounded twice."""
        replaced = None if self.replaced_deltas is None else as_tensor(self.replaced_deltas)
        if replaced is not None and not self.changes:
            return replaced
        if (kernels := self._build_kernel_evaluation(deltas=True)) is not None:
            return as_tensor(kernels.decode())
        deltas = self._copy_deltas() if replaced is None else _copy_of(replaced)
        for change in self.changes:
            deltas = change.apply(deltas, self.start)
        return deltas

    def _copy_deltas(self) -> Tensor:
        """Return the deltas of the original rows, in new memory."""
        if (
            not self.is_changed
            and (kernels := self._build_kernel_evaluation(deltas=True)) is not None
        ):
            return as_tensor(kernels.decode())
        import torch

        base = self.require_base()
        tensors = self.rows.decode() if self.is_changed else self.tensors
        return torch.sub(tensors, base, out=pooled_like(tensors))

    def require_base(self) -> Tensor:
        """Return the base's rows.

        Raises:
            ValueError: if the block has no base.
        """
        if self.base is None:
            raise ValueError("this stage needs a base")
        return self.base

    @cached_property
    def keep_probability(self) -> Tensor | None:
        """Keep probability of each delta, shaped to multiply deltas; None if none were dropped."""
        return self.chances() if callable(self.chances) else self.chances

    def uniform(self, keys: Sequence[Key]) -> Tensor:
        """Return a random number in [0, 1) for each element: a hash of its model's key and its position."""
        like = self.deltas if self.is_changed else self.tensors
        return uniform(like, self.start, keys)

    # ── results ──────────────────────────────────────────────────────────────────────────────────

    def evaluate_deltas(self) -> Evaluation:
        """Return the evaluation of the deltas, with the base."""
        kernels = self._build_kernel_evaluation(deltas=True)
        if kernels is not None:
            return kernels
        from emberge.numerics.torch_evaluation import TorchEvaluation

        return TorchEvaluation(self.deltas, self.base)

    def evaluate_models(self) -> Evaluation:
        """Return the evaluation of the models' rows."""
        kernels = None if self.shares else self._build_kernel_evaluation(deltas=False)
        if kernels is not None:
            return kernels
        from emberge.numerics.torch_evaluation import TorchEvaluation

        return TorchEvaluation(self.tensors)

    def combine(
        self, coefficients: Sequence[float], *, dtype: str = "float32"
    ) -> Tensor | np.ndarray:
        """Return Σ coefficient × model, computed from the rows as read even if models are sums of them.

        For `dtype` see `Evaluation`.
        """
        if not self.shares:
            return self.evaluate_models().combine(coefficients, add_base=False, dtype=dtype)
        if len(coefficients) != len(self.shares):
            raise ValueError(f"{len(coefficients)} coefficients for {len(self.shares)} models")
        columns = zip(*self.shares, strict=True)
        products = [
            sum(c * share for c, share in zip(coefficients, column, strict=True))
            for column in columns
        ]
        return DeltaProgram(self.rows, self.start).combine(products, dtype=dtype)

    def inner_products(self, *, deltas: bool, differences: bool) -> dict[str, np.ndarray]:
        """Return the Gram matrix "products" of the models or their `deltas`, float64 [models, models].

        With `differences`, also the Gram matrix "differences" of the first model and the other models'
        differences from it.
        """
        evaluation = self.evaluate_deltas() if deltas else self.evaluate_models()
        return inner_products(evaluation, differences=differences)

    def sums_before_and_after(self) -> tuple[np.ndarray, np.ndarray]:
        """Return each model's sum of |delta| before and after the changes, float64 [models] each."""
        kernels = self._build_kernel_evaluation(deltas=True)
        if kernels is not None and self.replaced_deltas is None:
            return kernels.sums_before_and_after()
        sums_before = self.original.evaluate_deltas().sums(squares=False)
        return sums_before, self.evaluate_deltas().sums(squares=False)

    def _build_kernel_evaluation(self, *, deltas: bool) -> KernelEvaluation | None:
        """Return the kernels' evaluation of the rows or the deltas; None if torch has to compute it."""
        rows = self.rows
        if not isinstance(rows, StoredRows):
            return None
        if (self.shares if deltas else self.is_changed) or not self._can_use_kernels():
            return None
        if deltas and self.replaced_deltas is None and not rows.has_base:
            return None
        subtract = deltas and self.replaced_deltas is None
        return KernelEvaluation.of(
            rows, self.changes, self.replaced_deltas, self.start, subtract=subtract
        )

    def _can_use_kernels(self) -> bool:
        """Return whether kernels can read the deltas, and know the positions that random drops need."""
        exceeds_span = self.start + self.size > SPAN
        if exceeds_span and any(isinstance(change, DropAtRandom) for change in self.changes):
            return False
        deltas = self.replaced_deltas
        if deltas is None:
            return True
        if isinstance(deltas, np.ndarray):
            return deltas.dtype == np.float32 and deltas.flags.c_contiguous
        is_single = deltas.device.type == "cpu" and str(deltas.dtype) == "torch.float32"
        return is_single and deltas.is_contiguous()

    # ── programs that follow from this one ───────────────────────────────────────────────────────

    def record(
        self, change: DeltaChange, chances: Tensor | Callable[[], Tensor] | None = None
    ) -> DeltaProgram:
        """Return the program with one more change of the deltas, and keep probabilities if it is random."""
        if not self.has_base:
            self.require_base()
        return DeltaProgram(
            self.rows,
            self.start,
            # Kernels read the deltas of single models alone.
            replaced_deltas=self.deltas if self.shares else self.replaced_deltas,
            changes=(*self.changes, change),
            unchanged_program=self.original,
            chances=self.chances if chances is None else chances,
        )

    def with_deltas(
        self, deltas: Tensor | np.ndarray, chances: Tensor | Callable[[], Tensor] | None = None
    ) -> DeltaProgram:
        """Return the program with its deltas replaced by `deltas`, for the same number of models."""
        if not self.has_base:
            self.require_base()
        return DeltaProgram(
            self.rows,
            self.start,
            replaced_deltas=deltas,
            unchanged_program=self.original,
            chances=self.chances if chances is None else chances,
        )

    def draw_ranked(self, lines: Sequence[Line], width: int, keys: Sequence[Key]) -> np.ndarray:
        """Decide which deltas stay, with a probability that depends on each delta's rank in its row.

        Rows have `width` elements. Each model's line is (probability for the smallest magnitude, increase per
        rank). The result has a bit for each delta (`noise.draw_ranked`).
        """
        kernels = self._build_kernel_evaluation(deltas=True)
        if kernels is None or self.start + self.size > SPAN:
            return draw_ranked(self.deltas, lines, width, self.start, keys)
        return kernels.draw_ranked(lines, width, keys)

    def _count_models(self) -> int:
        if self.replaced_deltas is not None:
            return len(self.replaced_deltas)
        return len(self.shares) or self.rows.count

    def keep_drawn(self, bits: np.ndarray, lines: Sequence[Line], width: int) -> DeltaProgram:
        """Return the program without the deltas that `draw_ranked` decided to drop.

        Raises:
            ValueError: if the bits are not those of these rows.
        """
        rows, row_bytes = self.size // max(1, width), -(-width // 8)
        # Kernels read the bits by their address.
        if bits.dtype != np.uint8 or bits.shape[1:] != (rows, row_bytes):
            raise ValueError(f"{rows} rows of {width} need bits [models, {rows}, {row_bytes}]")
        if len(bits) != self._count_models() or not bits.flags.c_contiguous:
            raise ValueError(f"bits of {len(bits)} models do not fit, or have gaps")
        return self.record(KeepDrawn(bits, width), lambda: chances_of(self.deltas, lines, width))

    def with_tensors(self, tensors: Tensor) -> DeltaProgram:
        """Return a program for other rows [models, *rows] and the same base, without changes."""
        return DeltaProgram(DecodedRows(tensors, self.base), self.start)

    def with_sums(self, shares: Sequence[Sequence[float]]) -> DeltaProgram:
        """Return a program whose models are weighted sums of these models, computed when needed."""
        plain_program = (
            self if not (self.is_changed or self.shares) else self.with_tensors(self.tensors)
        )
        factors = tuple(tuple(map(float, one)) for one in shares)
        return DeltaProgram(plain_program.rows, self.start, shares=factors)

    def pick(self, index: Sequence[int]) -> DeltaProgram:
        """Return a program for some of the models, given by their indices in ascending order."""
        if self.is_changed:
            deltas = _pick_models(self.deltas, index)
            return DeltaProgram(self.rows, self.start, replaced_deltas=deltas)
        if self.shares:
            return self.with_tensors(_pick_models(self.tensors, index))
        return DeltaProgram(self.rows.pick(index), self.start)

    def take_runs(self, stride: int) -> DeltaProgram:
        """Return a program for every `stride`-th run of the tensor's elements, as one row."""
        kernels = self._build_kernel_evaluation(deltas=True) if self.is_changed else None
        if kernels is not None:
            runs = _take_array_runs(kernels.decode(), stride, self.start)
            return DeltaProgram(
                self.rows.take_runs(stride, self.start), self.start, replaced_deltas=runs
            )
        if self.is_changed:
            base = _take_runs(self.require_base()[None], stride, self.start)[0]
            deltas = _take_runs(self.deltas, stride, self.start)
            return DeltaProgram(
                DecodedRows(base + deltas, base), self.start, replaced_deltas=deltas
            )
        plain_program = self.with_tensors(self.tensors) if self.shares else self
        return DeltaProgram(plain_program.rows.take_runs(stride, self.start), self.start)

    def check_rest(self) -> None:
        """Check the rows that were not read so far for NaN and too large values, if rows are checked.

        Raises:
            RowsError: if they have such values.
        """
        if isinstance(self.rows, StoredRows):
            self.rows.check_rest()

    def without_rows(self) -> DeltaProgram:
        """Return a program without rows, for work that only needs weights and options."""
        models = len(self.shares) or self.rows.count
        return DeltaProgram.empty(models, self.rows.shape, self.dtype, based=self.has_base)


def _pick_models(values: Tensor, index: Sequence[int]) -> Tensor:
    """Return some models of [models, …], without a copy if they are consecutive."""
    first, last = index[0], index[-1]
    return values[first : last + 1] if last - first + 1 == len(index) else values[list(index)]


def _take_runs(values: Tensor, stride: int, start: int) -> Tensor:
    """Return every `stride`-th run of [models, *rows], whose first element is number `start`, [models, k]."""
    flat = values.reshape(len(values), -1)
    import torch

    return torch.cat([flat[:, :0], *(flat[:, run] for run in _slice_runs(flat, stride, start))], 1)


def _take_array_runs(values: np.ndarray, stride: int, start: int) -> np.ndarray:
    """Return the same of a NumPy array."""
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    runs = [flat[:, run] for run in _slice_runs(flat, stride, start)]
    return np.concatenate([flat[:, :0], *runs], axis=1)


def _slice_runs(flat: Tensor | np.ndarray, stride: int, start: int) -> list[slice]:
    begins, ends = list_runs(start, flat.shape[1], stride)
    return [slice(*run) for run in zip(begins.tolist(), ends.tolist(), strict=True)]


def _copy_of(values: Tensor) -> Tensor:
    return pooled_like(values).copy_(values)

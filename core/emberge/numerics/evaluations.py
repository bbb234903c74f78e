"""Arithmetic on rows of several models, by torch or by compiled kernels, with equal bytes; loads no torch.

`TorchEvaluation` works on rows that are already decoded and changed. `KernelEvaluation` decodes rows, applies
the changes and computes the result in one pass over chunks that fit into the processor's first cache. Both
sum in the same fixed order, by lanes, as the order of a library's sums is not fixed. Of magnitudes and
squares, lane l adds elements l, l + 1,024, … of a run of 65,536 in the numbers' own type, and the lanes of
all runs are added in float64. Of products of two models, lane l adds elements l, l + 256, … in float64. At
last the lanes are added in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from emberge.numerics.buffers import kept_array, pooled_array
from emberge.numerics.delta_changes import DeltaChange, Limit, TakeVariance
from emberge.numerics.noise import Line, list_rank_chances, odd_numbers
from emberge.numerics.row_kernels import GRAM_LANES, LANES
from emberge.numerics.stored_rows import StoredRows

if TYPE_CHECKING:
    from torch import Tensor


class Bracket(NamedTuple):
    """The range of bit patterns, `low` to `high`, that contains the limit of model number `row`.

    In this range, the `frequent` patterns are counted row by row; all others are collected.
    """

    row: int
    low: int
    high: int
    frequent: Sequence[int] = ()


class BracketCount(NamedTuple):
    """Counts of magnitudes `above` and `inside` a bracket, and of nonzero magnitudes.

    `values` are the infrequent patterns inside, and `rows` the row of each, counted from the block's first
    row. `ties` [frequent, rows] counts each frequent pattern in each row.
    """

    above: int
    inside: int
    nonzero: int
    values: np.ndarray
    rows: np.ndarray
    ties: np.ndarray


class Evaluation(Protocol):
    """Results computed from several models' rows [models, *rows] and the base's.

    Rows are tensors, or NumPy arrays if the rows are to be merged without torch. `dtype` is the one in which
    merged rows will be stored. If it is bfloat16, kernels return such numbers (in an array uint16 words);
    in all other cases merged rows have the dtype of the computation.
    """

    def values(self) -> Tensor | np.ndarray:
        """Return the rows themselves, [models, *rows]."""
        ...

    def differences(self) -> Tensor | np.ndarray:
        """Return the first model's rows, and the other models' differences from it."""
        ...

    def patterns(self, models: Sequence[int] | None) -> Iterator[np.ndarray]:
        """Yield the bit patterns of the magnitudes of each of these models or of all, [elements]."""
        ...

    def combine(
        self, coefficients: Sequence[float], *, add_base: bool, dtype: str = "float32"
    ) -> Tensor | np.ndarray:
        """Return Σ coefficient × rows in model order, plus the base's rows with `add_base`."""
        ...

    def elect(
        self,
        votes: Sequence[float],
        weights: Sequence[float],
        *,
        normalize: bool,
        scale: float,
        dtype: str = "float32",
    ) -> Tensor | np.ndarray:
        """Return base + scale × the weighted mean of the values that have the sign elected by `votes`.

        If the votes add up to zero, the sign is plus. Without `normalize` the sum is not divided by the
        weights of the agreeing models.
        """
        ...

    def sums(self, *, squares: bool) -> np.ndarray:
        """Return the sum of each model's magnitudes or `squares`, float64 [models]."""
        ...

    def gram(self, *, differences: bool) -> np.ndarray:
        """Return the inner products of the rows (or `differences()`), float64 [models, models]."""
        ...

    def count(self, brackets: Sequence[Bracket], width: int) -> list[BracketCount]:
        """Return counts of the magnitudes above and inside each bracket, for rows of `width` elements."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class KernelEvaluation:
    """An evaluation of stored rows by compiled kernels, on a CPU in float32."""

    stored: StoredRows
    rows: Any
    changes: Any
    models: int
    recorded: Sequence[DeltaChange]
    """The changes themselves, whose arrays `changes` refers to."""

    @classmethod
    def of(
        cls,
        stored: StoredRows,
        changes: Sequence[DeltaChange],
        deltas: Tensor | np.ndarray | None,
        start: int,
        *,
        subtract: bool,
    ) -> KernelEvaluation:
        """Build the kernels' arguments, for `deltas` or for the rows (minus the base if `subtract`)."""
        count = len(stored.models) if deltas is None else len(deltas)
        coded_changes = stored.kernels.KernelProgram.of(
            np.array([change.kernel_step for change in changes], np.int64),
            np.array([change.kernel_numbers() for change in changes], np.float32).reshape(
                -1, count
            ),
            np.array([change.kernel_words() for change in changes], np.int64).reshape(-1, count, 3),
            start,
        )
        merges_models = any(isinstance(change, TakeVariance) for change in changes)
        return cls(
            stored,
            stored.kernel_rows(deltas, subtract=subtract),
            coded_changes,
            1 if merges_models else count,
            changes,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one model's rows."""
        return self.stored.shape

    @property
    def kernels(self) -> Any:
        """The module of compiled kernels."""
        return self.stored.kernels

    def _run(self, kernel: Any, *arguments: Any) -> None:
        """Run a kernel on the rows with further arguments, and require that all rows are usable."""
        kernel(self.rows, self.changes, self.stored.size, *arguments)
        self.stored.require_usable()

    def values(self) -> Tensor | np.ndarray:
        return self._finish(self.decode())

    def differences(self) -> Tensor | np.ndarray:
        return self._finish(self.decode(less_first=True))

    def decode(self, *, less_first: bool = False) -> np.ndarray:
        """Return the changed rows [models, *rows], or the first and the others' differences from it."""
        out = pooled_array((self.models, *self.shape), np.float32)
        self._run(self.kernels.decode, less_first, out.reshape(self.models, self.stored.size))
        return out

    def patterns(self, models: Sequence[int] | None) -> Iterator[np.ndarray]:
        flat = self.decode().reshape(self.models, self.stored.size)
        chosen = range(self.models) if models is None else models
        yield from (Limit.patterns(flat[model]) for model in chosen)

    def _finish(self, rows: np.ndarray) -> Tensor | np.ndarray:
        return rows if self.stored.without_torch else as_tensor(rows)

    def _allocate_merged(self, dtype: str) -> np.ndarray:
        """Return memory for merged rows: words of bfloat16 if they will be stored so, or else float32."""
        return pooled_array(self.shape, np.uint16 if dtype == "bfloat16" else np.float32)

    def combine(
        self, coefficients: Sequence[float], *, add_base: bool, dtype: str = "float32"
    ) -> Tensor | np.ndarray:
        require_count(coefficients, self.models)
        out = self._allocate_merged(dtype)
        factors = np.array(coefficients, np.float32)
        self._run(self.kernels.combine, factors, add_base, out.reshape(-1))
        return self._finish(out)

    def elect(
        self,
        votes: Sequence[float],
        weights: Sequence[float],
        *,
        normalize: bool,
        scale: float,
        dtype: str = "float32",
    ) -> Tensor | np.ndarray:
        least = least_divisor(weights)
        out = self._allocate_merged(dtype)
        self._run(
            self.kernels.elect,
            np.array(votes, np.float32),
            np.array(weights, np.float32),
            np.float32(-1 if least is None else least),
            normalize,
            np.float32(scale),
            out.reshape(-1),
        )
        return self._finish(out)

    def sums(self, *, squares: bool) -> np.ndarray:
        lanes = np.zeros((self.models, LANES))
        self._run(self.kernels.sums, squares, False, lanes[:0], lanes)
        return add_lanes(lanes)

    def sums_before_and_after(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the sums of each model's magnitudes before and after the changes, from one reading."""
        before, after = np.zeros((len(self.stored.models), LANES)), np.zeros((self.models, LANES))
        self._run(self.kernels.sums, False, True, before, after)
        return add_lanes(before), add_lanes(after)

    def draw_ranked(
        self, lines: Sequence[Line], width: int, keys: Sequence[tuple[object, ...]]
    ) -> np.ndarray:
        """Decide which values stay, as `noise.draw_ranked`; all positions must be within the hash's span."""
        bits = kept_array((self.models, self.stored.size // width, -(-width // 8)), np.uint8)
        chances = np.stack([list_rank_chances(line, width, np.float32) for line in lines])
        multipliers = np.array([odd_numbers((*key, 0)) for key in keys], np.uint32)
        self._run(self.kernels.draw_ranked, chances, multipliers, bits)
        return bits

    def gram(self, *, differences: bool) -> np.ndarray:
        lanes = np.zeros((self.models * (self.models + 1) // 2, GRAM_LANES))
        self._run(self.kernels.gram, differences, lanes)
        return build_gram(lanes, self.models)

    def count(self, brackets: Sequence[Bracket], width: int) -> list[BracketCount]:
        bracket_count = len(brackets)
        most_frequent = max((len(bracket.frequent) for bracket in brackets), default=0)
        frequent = np.full((bracket_count, most_frequent), -1, np.int64)
        for listed, bracket in zip(frequent, brackets, strict=True):
            listed[: len(bracket.frequent)] = bracket.frequent
        counts = np.zeros((bracket_count, 4), np.int64)
        shape = (bracket_count, self.stored.size)
        values, rows = pooled_array(shape, np.int32), pooled_array(shape, np.int32)
        ties = np.zeros((bracket_count, most_frequent, -(-self.stored.size // width)), np.int32)
        self._run(
            self.kernels.count_near_limits,
            width,
            np.array([bracket.row for bracket in brackets], np.int64),
            np.array([bracket.low for bracket in brackets], np.int64),
            np.array([bracket.high for bracket in brackets], np.int64),
            frequent,
            counts,
            values,
            rows,
            ties,
        )
        bracket_counts = []
        for i, (above, inside, nonzero, collected) in enumerate(counts.tolist()):
            frequent_ties = ties[i, : len(brackets[i].frequent)]
            # The room is used again by the next call, and what was collected stays.
            collected_values = values[i, :collected].copy(), rows[i, :collected].copy()
            bracket_counts.append(
                BracketCount(above, inside, nonzero, *collected_values, frequent_ties)
            )
        return bracket_counts


def inner_products(evaluation: Evaluation, *, differences: bool) -> dict[str, np.ndarray]:
    """Return the Gram matrix "products", float64 [models, models]; with `differences`, also "differences".

    "differences" is the Gram matrix of the first model and the other models' differences from it. If the
    differences are short, as between models tuned from one base, "products" is computed from it.
    """
    if not differences:
        return {"products": evaluation.gram(differences=False)}
    difference_products = evaluation.gram(differences=True)
    first = difference_products[0].copy()
    first[0] = 0.0
    products = difference_products + first + first[:, None] + difference_products[0, 0]
    products[0] = products[:, 0] = difference_products[0, 0] + first
    length, distances = products.diagonal().min(), difference_products.diagonal()[1:].sum()
    if distances > length / 4:
        products = evaluation.gram(differences=False)
    return {"products": products, "differences": difference_products}


def as_tensor(rows: Tensor | np.ndarray) -> Tensor:
    """Return rows as a tensor, without a copy; words of uint16 are numbers in bfloat16."""
    import torch

    if not isinstance(rows, np.ndarray):
        return rows
    if rows.dtype == np.uint16:
        return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(rows)


def require_count(coefficients: Sequence[float], models: int) -> None:
    """Require one coefficient for each model.

    Raises:
        ValueError: if there are more or fewer.
    """
    if len(coefficients) != models:
        raise ValueError(f"{len(coefficients)} coefficients for {models} models")


def least_divisor(weights: Sequence[float]) -> float | None:
    """Return a divisor for empty sums, smaller than every sum of some weights; None if there is none.

    Clamping divisors to this minimum is ten times faster than replacing zeros, which is needed with negative
    weights.
    """
    if min(weights) < 0:
        return None
    return min((w for w in weights if w > 0), default=1.0) / 2


def build_gram(lanes: np.ndarray, count: int) -> np.ndarray:
    """Return the symmetric matrix [count, count] whose lower triangle is given row by row, in lanes."""
    matrix: np.ndarray = np.zeros((count, count))
    lower = np.tri(count, dtype=bool)
    matrix[lower] = add_lanes(lanes)
    return np.where(lower, matrix, matrix.T)


def add_lanes(lanes: np.ndarray) -> np.ndarray:
    """Return the sums of float64 lanes [..., lanes], in order."""
    total: np.ndarray = lanes.cumsum(-1)[..., -1].copy()
    return total

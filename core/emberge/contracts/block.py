"""Blocks: the aligned rows of one tensor from every model, on which merge stages work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from emberge.numerics import DeltaChange, DeltaProgram, KernelRows, Operation


class Options(SimpleNamespace):
    """Values of a stage's options for one tensor, with schedules resolved, read as attributes.

    All blocks of the tensor have the same values, which must not be changed.
    """


@dataclass(frozen=True, slots=True)
class WeightedSum:
    """Merged rows Σ coefficient × model or, with `of_deltas`, base + Σ coefficient × delta.

    There is one coefficient per model, and the sum is added in the models' order.
    """

    coefficients: np.ndarray | Tensor | Sequence[float]
    of_deltas: bool = False

    @property
    def numbers(self) -> list[float]:
        """The coefficients as numbers."""
        # One call, as each item of an array would be one.
        numbers = self.coefficients
        return [float(n) for n in (numbers if isinstance(numbers, Sequence) else numbers.tolist())]

    def of_sums(self, shares: Sequence[Sequence[float]]) -> WeightedSum:
        """Return the same sum over other models j, if model i of this one is Σⱼ shares[i][j] · model j."""
        from emberge.numerics import require_count

        numbers = self.numbers
        require_count(numbers, len(shares))
        columns = zip(*shares, strict=True)
        return WeightedSum(
            [sum(n * share for n, share in zip(numbers, one, strict=True)) for one in columns]
        )

    def by_torch(self, rows: DeltaProgram) -> Tensor:
        """Return the merged rows, computed from tensors."""
        from emberge.numerics import compute_weighted_sum

        if not self.of_deltas:
            return compute_weighted_sum(self.numbers, rows.tensors)
        return compute_weighted_sum(self.numbers, rows.deltas).add_(rows.require_base())

    def by_kernels(self, rows: KernelRows) -> Tensor | np.ndarray:
        """Return the merged rows, computed by a kernel."""
        import numpy as np

        from emberge.numerics import require_count

        factors = np.array(self.numbers, np.float32)
        require_count(factors, rows.count)
        return rows.merge("combine", factors, self.of_deltas)


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """Whole rows of one tensor from every model, float32 (float64 in tests of worked examples).

    `rows` contains the numbers, which are decoded from files when `tensors`, `base` or `deltas` are read. A
    change of deltas is recorded (`record`); an operation (`evaluate`, `combine`, `inner_products`) computes
    the recorded changes and its result together, by compiled kernels if these are available, with the same
    bytes. If no link of a chain needs torch (`Stage.needs_torch`), `evaluate` may return a NumPy array.
    """

    name: str
    """The tensor's canonical name."""
    shape: tuple[int, ...]
    """The shape of the full tensor."""
    layer: str
    models: tuple[str, ...]
    groups: tuple[str, ...]
    rows: DeltaProgram
    weights: np.ndarray
    """The models' weights for this tensor, float64 [models]."""
    options: Options = field(default_factory=Options)
    """The resolved schedules of the running stage."""
    statistics: Mapping[str, Any] = field(default_factory=dict)
    """Entries of statistics files for this layer or tensor, by label or model, read on first use; of an entry
    with as many rows as the tensor only the block's rows."""
    index: int = 0
    """The index of the block's granule (rows that are measured together), from 0."""
    seed: int = 0
    fingerprints: tuple[str, ...] = ()
    """One content fingerprint per model, used as a key of its random masks."""
    keep_probability: Callable[[], Tensor] | None = None
    """After a random drop, computes each delta's probability to be kept, in a shape that divides `deltas`."""

    @classmethod
    def of(
        cls, tensors: Tensor, base: Tensor | None = None, *, start: int = 0, **fields: Any
    ) -> Block:
        """Build a block of rows in memory, [models, *rows] and [*rows], with defaults for tests.

        By default, the rows are all rows of a tensor named "w", and the models have weight 1 and no groups.
        """
        import numpy as np

        from emberge.numerics import DecodedRows, DeltaProgram

        count = len(tensors)
        defaults = {
            "name": "w",
            "shape": tuple(tensors.shape[1:]),
            "layer": "other",
            "models": tuple(f"model {i + 1}" for i in range(count)),
            "groups": ("",) * count,
            "weights": np.ones(count),
        }
        program = DeltaProgram(DecodedRows(tensors, base), start)
        values = {**defaults, **fields}
        return cls(rows=program, **values | {"weights": np.asarray(values["weights"], np.float64)})

    @property
    def tensors(self) -> Tensor:
        """The models' rows, [models, *rows]; a 0-D or 1-D tensor is one row."""
        return self.rows.tensors

    @property
    def base(self) -> Tensor | None:
        """The base's rows, shaped like one model's."""
        return self.rows.base

    @property
    def deltas(self) -> Tensor:
        """Each model's rows minus the base's, [models, *rows]; a stage must not write into it."""
        return self.rows.deltas

    @property
    def has_base(self) -> bool:
        """True if there is a base; its rows are not decoded."""
        return self.rows.has_base

    @property
    def start(self) -> int:
        """The number of elements of the full tensor before this block."""
        return self.rows.start

    @property
    def size(self) -> int:
        """The number of elements of one model's rows."""
        return self.rows.size

    def uniform(self, salt: str = "") -> Tensor:
        """Return uniform numbers in [0, 1), shaped like `tensors`: hashes of the elements' positions.

        The number of an element depends only on the seed, the tensor's name, the model's fingerprint, the
        salt, and the element's index in the full tensor; never on block size, order, device or worker.
        """
        return self.rows.uniform(self.random_keys(salt))

    def entry_shape(self, label: str) -> tuple[int, ...] | None:
        """Return the shape of a label's whole entry in `statistics`, without reading it; None if missing."""
        if label not in self.statistics:
            return None
        shapes = getattr(self.statistics, "shapes", None)
        return tuple(shapes[label] if shapes else getattr(self.statistics[label], "shape", ()))

    def random_keys(self, salt: str) -> list[tuple[object, ...]]:
        """Return each model's key of random numbers for this tensor; another `salt` draws other numbers."""
        keys = self.fingerprints or self.models
        return [(self.seed, self.name, key, salt) for key in keys]

    def evaluate(self, operation: Operation, dtype: str = "float32") -> Any:
        """Return the result of an operation, such as the merged rows that a formula describes.

        Compiled kernels write merged rows in bfloat16 at once if that is the `dtype` in which they will be
        stored. All other rows have the dtype of the computation.
        """
        rows = self.rows
        if rows.shares and isinstance(operation, WeightedSum) and not operation.of_deltas:
            operation, rows = operation.of_sums(rows.shares), rows.without_sums()
        kernel_rows = rows.take_kernel_rows(of_deltas=operation.of_deltas, merged_dtype=dtype)
        return (
            operation.by_torch(rows) if kernel_rows is None else operation.by_kernels(kernel_rows)
        )

    def combine(self, coefficients: np.ndarray | Tensor | Sequence[float]) -> Tensor:
        """Return Σ coefficient × model, added in order, so that block sizes do not matter."""
        return cast("Tensor", self.evaluate(WeightedSum(coefficients)))

    def inner_products(self, *, deltas: bool, differences: bool) -> dict[str, np.ndarray]:
        """Return Gram matrices, float64 [models, models]; their sum over all blocks is the tensor's.

        "products" is the matrix of the models, or of their `deltas`. "differences", if asked for, is the
        matrix of the first model (or delta) and the differences of the other models from it.
        """
        from emberge.numerics import InnerProducts

        return cast("dict[str, np.ndarray]", self.evaluate(InnerProducts(deltas, differences)))

    def record(self, change: DeltaChange) -> Block:
        """Return a copy whose deltas are changed, when they are needed."""
        return self.replace(rows=self.rows.record(change))

    def replace(self, **changes: Any) -> Block:
        """Return a copy of the block with the given fields replaced.

        Raises:
            TypeError: if there is no such field.
        """
        if unknown := changes.keys() - self.__dict__.keys():
            raise TypeError(f"a block has no field {', '.join(sorted(unknown))}")
        # This is called a dozen times for each block, and `dataclasses.replace` takes three times as long.
        block = object.__new__(Block)
        block.__dict__.update(self.__dict__, **changes)
        return block

    def with_tensors(self, tensors: Tensor) -> Block:
        """Return a copy whose models' rows are `tensors` [models, *rows], with the deltas that follow."""
        return self.replace(rows=self.rows.with_tensors(tensors))

    def with_deltas(self, deltas: Tensor) -> Block:
        """Return a copy whose models' deltas are replaced by `deltas`, and whose tensors are base + delta."""
        return self.replace(rows=self.rows.with_deltas(deltas))

    def take_runs(self, stride: int) -> Block:
        """Return a copy with every `stride`-th run of 512 elements of the tensor, as one row.

        If no earlier link changed the deltas, only these elements are read from the models' files.
        """
        return self.replace(rows=self.rows.take_runs(stride))

    def without_rows(self) -> Block:
        """Return a copy without rows: names, weights and options of the tensor, and no data."""
        return self.replace(rows=self.rows.without_rows(), index=0)

    def with_models(self, labels: Sequence[str], rows: DeltaProgram) -> Block:
        """Return a copy with other models, which have these labels, weight 1 and no random masks."""
        import numpy as np

        return self.replace(
            rows=rows,
            models=tuple(labels),
            groups=tuple(labels),
            fingerprints=(),
            weights=np.ones(len(labels)),
            keep_probability=None,
        )


def as_row_shape(shape: Iterable[int]) -> tuple[int, int]:
    """Return (rows, elements a row) of a tensor: a 0-D or 1-D tensor is one row."""
    shape = tuple(shape)
    if len(shape) < 2:
        return 1, math.prod(shape)
    return shape[0], math.prod(shape[1:])

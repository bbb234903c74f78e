"""Blocks: the aligned rows of one tensor from every model, on which merge stages work."""

from __future__ import annotations

import math
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from emberge.numerics import Bracket, BracketCount, DeltaChange, DeltaProgram, Limit


class Options:
    """Values of a stage's options for one tensor, with schedules resolved, read as attributes.

    All blocks of the tensor have the same values, which nobody may change.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = dict(values or {})

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"no option '{name}' was resolved for this stage") from None

    def items(self) -> ItemsView[str, Any]:
        """Return all numbers by name."""
        return self._values.items()

    def __repr__(self) -> str:
        return f"Options({self._values})"


@dataclass(frozen=True, slots=True)
class WeightedSum:
    """Merged rows Σ coefficient × model or, with `of_deltas`, base + Σ coefficient × delta.

    There is one coefficient per model, and the sum is added in the models' order.
    """

    coefficients: np.ndarray | Tensor | Sequence[float]
    of_deltas: bool = False


@dataclass(frozen=True, slots=True)
class SignElection:
    """Merged rows base + scale × the weighted mean of the deltas with the sign that `votes` elect.

    If the votes add up to zero, the sign is plus. Without `normalize`, the sum is not divided by the weights
    of the models that agree. (TIES: Yadav et al., 2023, arXiv:2306.01708)
    """

    votes: Sequence[float]
    weights: Sequence[float]
    normalize: bool = True
    scale: float = 1.0


Formula = WeightedSum | SignElection
"""Merged rows as a strategy describes them, for kernels to compute and store in one call."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """Whole rows of one tensor from every model, float32 (float64 in tests of worked examples).

    `rows` contains the numbers, which are decoded from files when `tensors`, `base` or `deltas` are read. The
    methods need no decoded numbers: methods that change deltas (`keep_largest`, `drop_at_random`,
    `scale_deltas`, …) are recorded, and methods that end a pass (`combine`, `inner_products`, …) compute
    the recorded changes and the result together. They use compiled kernels if these are available; the bytes
    are the same with and without kernels. If no link of a chain needs torch (`Stage.needs_torch`), `combine`,
    `evaluate` may return a NumPy array, which `merge` passes on.

    `shape` is the shape of the full tensor, and `index` is the position of the block's granule (the rows that
    are measured at once) in the tensor. `weights` is a float64 array [models], resolved for this tensor.
    `options` are the resolved schedules of the running stage. `statistics` are the entries of statistics
    files for this layer or tensor, by label or model, read on first use. If an entry has as many rows as the
    tensor, only the block's rows of it are given.
    """

    name: str
    shape: tuple[int, ...]
    layer: str
    models: tuple[str, ...]
    groups: tuple[str, ...]
    rows: DeltaProgram
    weights: np.ndarray
    options: Options = field(default_factory=Options)
    statistics: Mapping[str, Any] = field(default_factory=dict)
    index: int = 0
    seed: int = 0
    fingerprints: tuple[str, ...] = ()
    """One content fingerprint per model, used as a key of its random masks."""

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
        given = {**defaults, **fields}
        return cls(rows=program, **given | {"weights": np.asarray(given["weights"], np.float64)})

    # ── numbers ──────────────────────────────────────────────────────────────────────────────────

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
        """True if there is a base, which is not decoded to find out."""
        return self.rows.has_base

    @property
    def start(self) -> int:
        """The number of elements of the full tensor before this block."""
        return self.rows.start

    @property
    def size(self) -> int:
        """The number of elements of one model's rows."""
        return self.rows.size

    @property
    def keep_probability(self) -> Tensor | None:
        """Keep probability of each delta, in a shape that can divide `deltas`; None if none were dropped."""
        return self.rows.keep_probability

    def copy_deltas(self) -> Tensor:
        """Return `deltas` in memory that the caller may write into."""
        return self.rows.copy_deltas()

    def uniform(self, salt: str = "") -> Tensor:
        """Return uniform numbers in [0, 1), shaped like `tensors`: hashes of the elements' positions.

        The number of an element depends only on the seed, the tensor's name, the model's fingerprint, the
        salt, and the element's index in the full tensor; never on block size, order, device or worker.
        """
        return self.rows.uniform(self._list_random_keys(salt))

    def entry_shape(self, label: str) -> tuple[int, ...] | None:
        """Return the shape of a label's whole entry in `statistics`, without reading it; None if missing."""
        if label not in self.statistics:
            return None
        shapes = getattr(self.statistics, "shapes", None)
        return tuple(shapes[label] if shapes else getattr(self.statistics[label], "shape", ()))

    # ── results of all rows ──────────────────────────────────────────────────────────────────────

    def evaluate(self, formula: Formula, dtype: str = "float32") -> Tensor:
        """Return the merged rows that a formula describes, shaped like one model's.

        Compiled kernels write bfloat16 at once if that is the `dtype` in which the rows will be stored. All
        other results have the dtype of the computation.
        """
        if isinstance(formula, WeightedSum):
            values = _list_numbers(formula.coefficients)
            if not formula.of_deltas:
                return cast("Tensor", self.rows.combine(values, dtype=dtype))
            deltas = self.rows.evaluate_deltas()
            return cast("Tensor", deltas.combine(values, add_base=True, dtype=dtype))
        elected = self.rows.evaluate_deltas().elect(
            formula.votes,
            formula.weights,
            normalize=formula.normalize,
            scale=formula.scale,
            dtype=dtype,
        )
        return cast("Tensor", elected)

    def combine(
        self, coefficients: np.ndarray | Tensor | Sequence[float], vectors: Tensor | None = None
    ) -> Tensor:
        """Return Σ coefficient × model (or vector), added in order, so that block sizes do not matter."""
        if vectors is None:
            return self.evaluate(WeightedSum(coefficients))
        from emberge.numerics import weighted_sum

        return weighted_sum(_list_numbers(coefficients), vectors)

    def add_delta(self, delta: Tensor) -> Tensor:
        """Return base + a merged delta [*rows]: the result of a strategy that merges deltas."""
        return self.rows.require_base() + delta

    def inner_products(self, *, deltas: bool, differences: bool) -> dict[str, np.ndarray]:
        """Return Gram matrices, float64 [models, models]; their sum over all blocks is the tensor's.

        "products" is the matrix of the models, or of their `deltas`. "differences", if asked for, is the
        matrix of the first model (or delta) and the differences of the other models from it.
        """
        return self.rows.inner_products(deltas=deltas, differences=differences)

    def delta_sums(self, power: Literal[1, 2]) -> np.ndarray:
        """Return each model's sum of |delta| (`power` 1) or delta² (`power` 2), float64 [models]."""
        return self.rows.evaluate_deltas().sums(squares=power == 2)

    def delta_sums_before_and_after(self) -> tuple[np.ndarray, np.ndarray]:
        """Return each model's sum of |delta| before and after all changes, float64 [models] each."""
        return self.rows.sums_before_and_after()

    def count_deltas(self, brackets: Sequence[Bracket]) -> list[BracketCount]:
        """Return counts of the deltas' magnitudes above and inside each bracket, by row of the tensor."""
        return self.rows.evaluate_deltas().count(brackets, max(1, rows_of(self.shape)[1]))

    def delta_patterns(self, models: Sequence[int] | None = None) -> Iterator[np.ndarray]:
        """Yield the bit patterns of the deltas' magnitudes of each of these models or of all, [elements].

        A pattern is an integer, and patterns have the same order as magnitudes.
        """
        return self.rows.evaluate_deltas().patterns(models)

    # ── changes of deltas, recorded ──────────────────────────────────────────────────────────────

    def keep_largest(self, limits: Sequence[Limit], *, undo: bool = False) -> Block:
        """Record that each model's deltas below its limit (with `undo`: at or above it) become zero."""
        from emberge.numerics import KeepLargest

        return self._record(KeepLargest(tuple(limits), undo))

    def keep_varied(self, limit: Limit) -> Block:
        """Record that deltas become zero where their variance over the models is zero or below the limit."""
        from emberge.numerics import KeepVaried

        return self._record(KeepVaried(limit, len(self.models)))

    def variances(self) -> Block:
        """Return a block with a single delta: the variance of the deltas over the models."""
        from emberge.numerics import TakeVariance

        return self._record(TakeVariance(len(self.models)))

    def drop_at_random(self, densities: np.ndarray, salt: str) -> Block:
        """Record that each delta is kept with its model's probability; another `salt` draws other numbers."""
        from emberge.numerics import DropAtRandom

        def list_chances() -> Tensor:
            import torch

            chances = torch.from_numpy(densities).to(getattr(torch, self.rows.dtype))
            return chances.reshape(-1, *[1] * len(self.shape))

        drop = DropAtRandom(tuple(densities.tolist()), self._list_random_keys(salt))
        return self.replace(rows=self.rows.record(drop, list_chances))

    def draw_ranked(self, lines: Sequence[tuple[float, float]], salt: str) -> np.ndarray:
        """Decide which deltas stay, with a probability that depends on the rank of each magnitude.

        Magnitudes are ranked within each row of each model. Each model's line is (probability for the least
        magnitude of a row, amount that each further rank adds to it). Equal magnitudes are ranked in the
        order of their elements. A tensor of one dimension is one row. The result has a bit for each delta,
        [models, rows, (width + 7) // 8], as `np.packbits` gives them with the lowest bit first.
        """
        width = rows_of(self.shape)[1]
        return self.rows.draw_ranked(lines, width, self._list_random_keys(salt))

    def keep_drawn(self, bits: np.ndarray, lines: Sequence[tuple[float, float]]) -> Block:
        """Record that deltas become zero whose bit is 0, as `draw_ranked` with these lines decided."""
        return self.replace(rows=self.rows.keep_drawn(bits, lines, rows_of(self.shape)[1]))

    def scale_deltas(self, factors: np.ndarray | Tensor) -> Block:
        """Record that each model's deltas are multiplied by its factor."""
        from emberge.numerics import ScaleDeltas

        return self._record(ScaleDeltas(tuple(factors.tolist())))

    def divide_deltas(self, divisors: np.ndarray | Tensor) -> Block:
        """Record that each model's deltas are divided by its divisor."""
        from emberge.numerics import DivideDeltas

        return self._record(DivideDeltas(tuple(divisors.tolist())))

    def _record(self, change: DeltaChange) -> Block:
        return self.replace(rows=self.rows.record(change))

    def _list_random_keys(self, salt: str) -> list[tuple[object, ...]]:
        keys = self.fingerprints or self.models
        return [(self.seed, self.name, key, salt) for key in keys]

    # ── other blocks ─────────────────────────────────────────────────────────────────────────────

    def replace(self, **changes: Any) -> Block:
        """Return a copy of the block with the given fields replaced.

        Raises:
            TypeError: if there is no such field.
        """
        if unknown := changes.keys() - self.__dict__.keys():
            raise TypeError(f"a block has no field {', '.join(sorted(unknown))}")
        # A dozen blocks are made for each that is read, and `dataclasses.replace` takes three times as long.
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

        Nothing else is read of models in files, if no link before changed their deltas.
        """
        return self.replace(rows=self.rows.take_runs(stride))

    def without_rows(self) -> Block:
        """Return a copy without rows: names, weights and options of the tensor, and no data."""
        return self.replace(rows=self.rows.without_rows(), index=0)

    def pick_models(self, index: Sequence[int]) -> Block:
        """Return a copy with some of the models, given by their indices in ascending order."""

        def pick(values: Sequence[str]) -> tuple[str, ...]:
            return tuple(values[i] for i in index) if values else ()

        return self.replace(
            rows=self.rows.pick(index),
            models=pick(self.models),
            groups=pick(self.groups),
            fingerprints=pick(self.fingerprints),
            weights=self.weights[list(index)],
        )

    def with_sums(self, shares: Mapping[str, Sequence[float]]) -> Block:
        """Return a block whose models are weighted sums of this block's models, given factors by label.

        The rows are summed when they are read; `combine` only multiplies the factors.
        """
        return self._replace_models(tuple(shares), self.rows.with_sums([*shares.values()]))

    def merge_groups(self, merged: Mapping[str, Tensor]) -> Block:
        """Return a block whose models are the groups, given each group's merged rows by label."""
        import torch

        from emberge.numerics import pooled_like

        labels = tuple(dict.fromkeys(self.groups))
        rows = [merged[label] for label in labels]
        buffer = pooled_like(rows[0], (len(rows), *rows[0].shape))
        program = self.rows.with_tensors(torch.stack(rows, out=buffer))
        return self._replace_models(labels, program)

    def _replace_models(self, labels: tuple[str, ...], rows: DeltaProgram) -> Block:
        import numpy as np

        return self.replace(
            rows=rows,
            models=labels,
            groups=labels,
            fingerprints=(),
            weights=np.ones(len(labels)),
        )


def _list_numbers(values: np.ndarray | Tensor | Sequence[float]) -> list[float]:
    # One call, as each item of an array would be one.
    numbers = values if isinstance(values, Sequence) else values.tolist()
    return [float(number) for number in numbers]


def rows_of(shape: Iterable[int]) -> tuple[int, int]:
    """Return (rows, elements a row) of a tensor: a 0-D or 1-D tensor is one row."""
    shape = tuple(shape)
    if len(shape) < 2:
        return 1, math.prod(shape)
    return shape[0], math.prod(shape[1:])

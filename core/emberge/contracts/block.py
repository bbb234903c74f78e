"""Blocks: aligned rows of one tensor from every model, all that a merge stage ever sees."""

from __future__ import annotations

import math
from collections.abc import ItemsView, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Block", "Options", "rows_of"]

_RUN = 8192


class Options:
    """The numbers that a stage's schedules resolve to for one tensor, read as attributes."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = dict(values or {})

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"no option '{name}' was resolved for this stage") from None

    def items(self) -> ItemsView[str, Any]:
        """Return all of them by name."""
        return self._values.items()

    def __repr__(self) -> str:
        return f"Options({self._values})"


@dataclass(frozen=True, eq=False)
class Block:
    """Whole rows of one tensor from every model, float32 (float64 in worked-number tests).

    `tensors` is stacked, [models, *rows]; a 0-D or 1-D tensor is one row. `base` has the shape of one
    model's rows. `start` counts the elements of the full tensor before this block, `index` is its
    place among the tensor's granules. `weights` is float64 [models], resolved for this tensor.
    `options` are the resolved schedules of the running stage; `statistics` this layer's or tensor's
    entries of statistics files by label or model, read when they are asked for. Of an entry with as many
    rows as the tensor only the block's rows are given.
    """

    name: str
    shape: tuple[int, ...]
    layer: str
    models: tuple[str, ...]
    groups: tuple[str, ...]
    tensors: Tensor
    base: Tensor | None
    weights: Tensor
    options: Options = field(default_factory=Options)
    statistics: Mapping[str, Any] = field(default_factory=dict)
    start: int = 0
    index: int = 0
    seed: int = 0
    fingerprints: tuple[str, ...] = ()
    """One content fingerprint per model: what random masks are keyed by."""
    changed: Tensor | None = None
    """The deltas that a transform left, kept because base + delta - base is rounded twice."""
    before: Block | None = None
    """The block as it was before the first link that changed deltas."""
    kept: Tensor | None = None
    """Probability with which each element was kept, broadcastable to `tensors`, after a random link."""
    mixed: Tensor | None = None
    """The rows of which each model here is a sum, [n, *rows], until its own are asked for."""
    shares: tuple[tuple[float, ...], ...] = ()
    """Each model's factors of `mixed`."""

    def entry_shape(self, label: str) -> tuple[int, ...] | None:
        """Return the shape of a label's whole entry in `statistics`, without reading it; None without one."""
        if label not in self.statistics:
            return None
        shapes = getattr(self.statistics, "shapes", None)
        return tuple(shapes[label] if shapes else getattr(self.statistics[label], "shape", ()))

    def _base(self) -> Tensor:
        if self.base is None:
            raise ValueError(f"{self.name}: this stage needs a base")
        return self.base

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Only what is missing is asked for here: tensors, which few links after a changed delta need,
            # and a sum of models' sums can do without.
            if name != "tensors":
                raise AttributeError(f"a block has no '{name}'")
            found = self._base() + self.changed if self.mixed is None else self._sums()
            self.__dict__["tensors"] = found
            return found

    @property
    def deltas(self) -> Tensor:
        """Each model minus the base, [models, *rows]; no link writes into them."""
        import torch

        from emberge.numerics.buffers import pooled_like

        if self.changed is not None:
            return self.changed
        return torch.sub(self.tensors, self._base(), out=pooled_like(self.tensors))

    @property
    def own_deltas(self) -> Tensor:
        """As `deltas`, in memory that the caller may write into."""
        from emberge.numerics.buffers import pooled_like

        return (
            self.deltas if self.changed is None else pooled_like(self.changed).copy_(self.changed)
        )

    @property
    def original(self) -> Tensor:
        """The deltas before the first link that changed them: what a rescaling link restores."""
        return (self.before or self).deltas

    @property
    def like(self) -> Tensor:
        """A tensor of the shape, dtype and device of `tensors`, which are not added up for it."""
        return self.tensors if self.changed is None else self.changed

    def with_deltas(self, deltas: Tensor, kept: Tensor | None = None) -> Block:
        """Return the block with base + deltas as its tensors; the number of models stays.

        A link that dropped elements at random gives the probability with which they were `kept`.
        """
        self._base()
        changed = self._copy(
            changed=deltas,
            before=self.before or self,
            kept=self.kept if kept is None else kept,
            mixed=None,
        )
        changed.__dict__.pop("tensors", None)
        return changed

    def add_delta(self, delta: Tensor) -> Tensor:
        """Add a merged delta [*rows] to the base: the result of a strategy in delta space."""
        return self._base() + delta

    def replace(self, **changes: Any) -> Block:
        """Replace some fields in a copy of the block; new tensors have no deltas of their own yet."""
        unknown = changes.keys() - self.__dataclass_fields__.keys()
        if unknown:
            raise TypeError(f"a block has no {', '.join(sorted(unknown))}")
        if "tensors" in changes or "base" in changes:
            for derived in ("changed", "before", "kept"):
                changes.setdefault(derived, None)
        if "tensors" in changes:
            changes.setdefault("mixed", None)
        return self._copy(**changes)

    def _copy(self, **changes: Any) -> Block:
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, **changes)
        return copy

    def without_rows(self) -> Block:
        """Return the block without rows: names, weights and options of the tensor, and no data."""

        def empty(values: Tensor | None) -> Tensor | None:
            return None if values is None else (values if self.shape else values[:, None])[:, :0]

        return self._copy(
            tensors=empty(self.like),
            base=None if self.base is None else (self.base if self.shape else self.base[None])[:0],
            changed=empty(self.changed),
            before=None,
            kept=empty(self.kept),
            start=0,
            index=0,
        )

    def gram(self, vectors: Tensor) -> Tensor:
        """Return the inner products of [n, *rows], float64 [n, n]; sums over blocks give a whole tensor's.

        float32 is summed in runs of 8,192 elements, and the runs in float64: half the time of float64
        throughout, at a relative error near 1e-7.
        """
        flat = vectors.reshape(vectors.shape[0], -1)
        runs = flat.shape[1] // _RUN if flat.dtype.itemsize < 8 else 0
        head, tail = flat[:, : runs * _RUN], flat[:, runs * _RUN :].double()
        sums = tail @ tail.mT
        if runs:
            parts = head.reshape(flat.shape[0], runs, _RUN).transpose(0, 1)
            sums = sums + (parts @ parts.mT).double().sum(0)
        return sums

    def combine(
        self, coefficients: Tensor | Sequence[float], vectors: Tensor | None = None
    ) -> Tensor:
        """Sum coefficient × model in model order, one fused step a model, so blocks do not matter."""
        from emberge.numerics.buffers import pooled_like

        values = [float(c) for c in coefficients]
        if vectors is None and self.mixed is not None and "tensors" not in self.__dict__:
            values, vectors = self._of_mixed(values), self.mixed
        vectors = self.tensors if vectors is None else vectors
        _require_count(self.name, values, len(vectors))
        return _add_up(values, vectors, pooled_like(vectors[0]))

    def uniform(self, salt: str = "") -> Tensor:
        """Return uniform numbers in [0, 1), shaped like `tensors`: a hash of every element's place.

        The number of an element depends on (seed, tensor name, the model's fingerprint, salt, its index in
        the full tensor), never on block size, order, device or worker.
        """
        from emberge.numerics.noise import uniform

        keys = self.fingerprints or self.models
        return uniform(self.like, self.start, [(self.seed, self.name, key, salt) for key in keys])

    def with_sums(
        self, shares: Mapping[str, Sequence[float]], weights: Mapping[str, float]
    ) -> Block:
        """Return the block whose models are sums of those here, given by label each one's factors.

        Their rows are added up when they are asked for; `combine` needs no more than products of factors.
        """
        summed = self.replace(
            models=tuple(shares),
            groups=tuple(shares),
            mixed=self.tensors,
            shares=tuple(tuple(map(float, factors)) for factors in shares.values()),
            weights=self.weights.new_tensor([weights.get(label, 1.0) for label in shares]),
            fingerprints=(),
            changed=None,
            before=None,
            kept=None,
        )
        del summed.__dict__["tensors"]
        return summed

    def _of_mixed(self, values: Sequence[float]) -> list[float]:
        """Return the factors of `mixed` that the models' factors come down to."""
        _require_count(self.name, values, len(self.shares))
        columns = zip(*self.shares, strict=True)
        return [sum(v * share for v, share in zip(values, of, strict=True)) for of in columns]

    def _sums(self) -> Tensor:
        """Return the models' rows, added up."""
        from emberge.numerics.buffers import pooled_like

        assert self.mixed is not None
        out = pooled_like(self.mixed, (len(self.shares), *self.mixed.shape[1:]))
        for factors, into in zip(self.shares, out, strict=True):
            used = [i for i, factor in enumerate(factors) if factor] or [0]
            some = slice(used[0], used[-1] + 1)
            _add_up(factors[some], self.mixed[some], into)
        return out

    def merge_groups(self, merged: Mapping[str, Tensor], weights: Mapping[str, float]) -> Block:
        """Return the block whose models are the group labels, given each group's merged rows."""
        import torch

        from emberge.numerics.buffers import pooled_like

        labels = tuple(dict.fromkeys(self.groups))
        rows = [merged[label] for label in labels]
        into = pooled_like(rows[0], (len(rows), *rows[0].shape))
        return self.replace(
            models=labels,
            groups=labels,
            tensors=torch.stack(rows, out=into),
            weights=self.weights.new_tensor([weights.get(label, 1.0) for label in labels]),
            fingerprints=(),
        )


def _require_count(name: str, values: Sequence[float], models: int) -> None:
    if len(values) != models:
        raise ValueError(f"{name}: {len(values)} coefficients for {models} models")


def _add_up(values: Sequence[float], vectors: Tensor, out: Tensor) -> Tensor:
    """Write Σ value × vector into `out`, in order, and return it."""
    import torch

    torch.mul(vectors[0], values[0], out=out)
    for value, vector in zip(values[1:], vectors[1:], strict=True):
        out.add_(vector, alpha=value)
    return out


def rows_of(shape: Iterable[int]) -> tuple[int, int]:
    """Return (rows, elements a row) of a tensor: a 0-D or 1-D tensor is one row."""
    shape = tuple(shape)
    if len(shape) < 2:
        return 1, math.prod(shape)
    return shape[0], math.prod(shape[1:])

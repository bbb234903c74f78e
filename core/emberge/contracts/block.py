"""Blocks: aligned rows of one tensor from every model, all that a merge stage ever sees."""

from __future__ import annotations

import math
from collections.abc import Callable, ItemsView, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from emberge.numerics import Limit, Link, Program, StoredRows

__all__ = ["Block", "Options", "rows_of"]


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


def _nothing() -> None:
    """Return None: a default that leaves no attribute at the class, so that a block may lack one."""


@dataclass(frozen=True, eq=False)
class Block:
    """Whole rows of one tensor from every model, float32 (float64 in worked-number tests).

    Rows that come from files stay as they are stored until `tensors`, `base` or `deltas` are asked for. The
    verbs do without: those that change deltas (`keep_largest`, `drop_at_random`, `scale_deltas`, …) are
    recorded, and those that end a pass (`combine`, `add_deltas`, `elect`, `gram`, …) do all at once, with
    compiled kernels where there are any, to the same bytes.

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
    changed: Tensor | None = field(default_factory=_nothing)
    """The deltas that a transform left, kept because base + delta - base is rounded twice."""
    before: Block | None = None
    """The block as it was before the first link that changed deltas."""
    kept: Tensor | None = field(default_factory=_nothing)
    """Probability with which each element was kept, broadcastable to `tensors`, after a random link."""
    mixed: Tensor | None = field(default_factory=_nothing)
    """The rows of which each model here is a sum, [n, *rows], until its own are asked for."""
    shares: tuple[tuple[float, ...], ...] = ()
    """Each model's factors of `mixed`."""
    stored: StoredRows | None = None
    """The rows as they are stored, which those that are missing are decoded from."""
    links: tuple[Link, ...] = ()
    """The changes of deltas that were recorded, and not done yet."""
    linked: Tensor | None = None
    """The deltas that `links` change; default: each model minus the base."""
    chances: Callable[[], Tensor] | None = None
    """The computation of `kept`, until it is asked for."""

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
            # Only what is missing is asked for here: what is stored and not decoded, changes that were
            # recorded, and tensors, which few links after a changed delta need, and a sum of models' sums
            # can do without.
            if name not in _MISSING:
                raise AttributeError(f"a block has no '{name}'")
            found = _MISSING[name](self)
            self.__dict__[name] = found
            return found

    def _tensors(self) -> Tensor:
        """Return the models' rows, which are missing."""
        if self.shares:
            return self._sums()
        if self.changed is not None:
            return self._base() + self.changed
        assert self.stored is not None
        return self.stored.decode()

    def _stored_base(self) -> Tensor | None:
        """Return the base's rows, which are missing."""
        stored = self.stored
        return None if stored is None or stored.base is None else stored.decode_base()

    def _linked(self) -> Tensor:
        """Return the deltas after all recorded links."""
        if (program := self._program(deltas=True)) is not None:
            return program.decode()
        assert self.before is not None
        deltas = self.before.own_deltas if self.linked is None else _copy_of(self.linked)
        for link in self.links:
            deltas = link.apply(deltas, self.start)
        return deltas

    def _program(self, *, deltas: bool) -> Program | None:
        """Return the kernels' program for the models' rows or deltas; None where torch has to do it."""
        changed = self.links or self.__dict__.get("changed") is not None
        if self.stored is None or (self.shares if deltas else changed):
            return None
        from emberge.numerics import Program

        linked = self.linked if self.links else self.__dict__.get("changed")
        if deltas and self.stored.base is None and linked is None:
            return None
        return Program.of(self.stored, self.links, linked, self.start, deltas=deltas)

    @property
    def has_base(self) -> bool:
        """True if there is a base, which is not decoded for it."""
        if "base" in self.__dict__ or self.stored is None:
            return self.base is not None
        return self.stored.base is not None

    @property
    def deltas(self) -> Tensor:
        """Each model minus the base, [models, *rows]; no link writes into them."""
        import torch

        from emberge.numerics import pooled_like

        if self.changed is not None:
            return self.changed
        if (program := self._program(deltas=True)) is not None:
            return program.decode()
        base = self._base()
        if self._is_stored and "tensors" not in self.__dict__:
            assert self.stored is not None
            return self.stored.decode().sub_(base)
        return torch.sub(self.tensors, base, out=pooled_like(self.tensors))

    @property
    def own_deltas(self) -> Tensor:
        """As `deltas`, in memory that the caller may write into."""
        return self.deltas if self.changed is None else _copy_of(self.changed)

    @property
    def original(self) -> Tensor:
        """The deltas before the first link that changed them: what a rescaling link restores."""
        return (self.before or self).deltas

    @property
    def like(self) -> Tensor:
        """A tensor of the shape, dtype and device of `tensors`, which are not added up for it."""
        return self.tensors if self.changed is None else self.changed

    @property
    def size(self) -> int:
        """The number of elements of one model's rows."""
        if self.stored is not None:
            return self.stored.size
        return self.like[0].numel()

    def with_deltas(self, deltas: Tensor, kept: Tensor | None = None) -> Block:
        """Return the block with base + deltas as its tensors; the number of models stays.

        A link that dropped elements at random gives the probability with which they were `kept`.
        """
        self._base()
        changed = self._copy(
            changed=deltas,
            before=self.before or self,
            **({} if kept is None else {"kept": kept}),
            mixed=None,
            shares=(),
            links=(),
            linked=None,
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
            if self.stored is not None:
                rest = {"tensors", "base"} - changes.keys()
                changes.update({name: getattr(self, name) for name in rest})
            for derived in ("changed", "before", "kept", "stored", "linked"):
                changes.setdefault(derived, None)
            changes.setdefault("links", ())
        elif "changed" in changes:
            changes.update(links=(), linked=None)
        if "tensors" in changes:
            changes.setdefault("mixed", None)
            changes.setdefault("shares", ())
        return self._copy(**changes)

    def _copy(self, **changes: Any) -> Block:
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, **changes)
        return copy

    def with_rows(
        self, stored: StoredRows, start: int, index: int, statistics: Mapping[str, Any]
    ) -> Block:
        """Return the block of a tensor without data with rows as they are stored."""
        block = self._copy(stored=stored, start=start, index=index, statistics=statistics)
        del block.__dict__["tensors"], block.__dict__["base"]
        return block

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
            stored=None,
            links=(),
            linked=None,
            shares=(),
        )

    def gram(self, vectors: Tensor) -> Tensor:
        """Return the inner products of [n, *rows], float64 [n, n]; sums over blocks give a whole tensor's.

        float32 is summed in runs of 8,192 elements, and the runs in float64: half the time of float64
        throughout, at a relative error near 1e-7.
        """
        from emberge.numerics import gram

        return gram(vectors)

    def inner_products(self, *, deltas: bool, differences: bool) -> dict[str, Tensor]:
        """Return Gram matrices, float64 [models, models]: sums over blocks give a whole tensor's.

        "products" is of the models or their `deltas`; "differences", if asked for, of the first one and the
        others' differences to it.
        """
        from emberge.numerics import gram, inner_products, less_first

        program = self._program(deltas=deltas)

        def vectors() -> Tensor:
            if program is not None:
                return program.decode()
            return self.deltas if deltas else self.tensors

        if not differences:
            return {"products": gram(vectors())}
        apart = less_first(vectors()) if program is None else program.decode(less_first=True)
        return inner_products(apart, vectors)

    def delta_sums(self, power: Literal[1, 2]) -> Tensor:
        """Return the sums of the deltas' magnitudes (1) or squares (2), float64 [models]."""
        from emberge.numerics import sums

        if (program := self._program(deltas=True)) is not None:
            return program.sums(squares=power == 2)
        deltas = self.deltas
        return sums(deltas.reshape(len(deltas), -1), squares=power == 2)

    def every(self, stride: int) -> Block:
        """Return the block with every `stride`-th element of its tensor, as one row."""
        some = slice(-self.start % stride, None, stride)
        if self._is_stored:
            assert self.stored is not None
            tensors, base = self.stored.every(stride, some.start)
            return self.replace(tensors=tensors, base=base)
        base = None if self.base is None else self.base.reshape(-1)[some]
        values = self.like.reshape(len(self.like), -1)[:, some]
        if self.changed is None:
            return self.replace(tensors=values, base=base)
        return self._copy(base=base, changed=values, stored=None, links=(), linked=None)

    def delta_program(self) -> Program | None:
        """Return the kernels' program of the deltas; None where torch has to do it."""
        return self._program(deltas=True)

    def add_deltas(self, coefficients: Tensor | Sequence[float]) -> Tensor:
        """Return base + Σ coefficient × delta, in model order."""
        values = [float(c) for c in coefficients]
        if (program := self._program(deltas=True)) is not None:
            _require_count(self.name, values, program.models)
            return program.combine(values, add_base=True)
        return self.combine(values, self.deltas).add_(self._base())

    def elect(
        self,
        votes: Sequence[float],
        weights: Sequence[float],
        *,
        normalize: bool = True,
        scale: float = 1.0,
    ) -> Tensor:
        """Return base + scale × the weighted mean of the deltas with the sign that `votes` elect.

        Zero elects plus. Without `normalize` the sum is not divided by the weights of those that agree.
        """
        from emberge.numerics import elect, least_divisor

        if (program := self._program(deltas=True)) is not None:
            least = least_divisor(weights)
            return program.elect(votes, weights, least, normalize=normalize, scale=scale)
        deltas, base = self.deltas, self._base()
        return elect(deltas, base, votes, weights, normalize=normalize, scale=scale)

    # ── changes of deltas, recorded ──────────────────────────────────────────────────────────────

    def keep_largest(
        self, limits: Sequence[Limit], offset: int = 0, *, undo: bool = False
    ) -> Block:
        """Record that each model's deltas below its limit become zero; `undo` those from it on instead.

        `offset` is the tensor's first place among those that were ranked together.
        """
        from emberge.numerics import Kept

        return self._link(Kept(tuple(limits), offset, undo))

    def keep_varied(self, limit: Limit) -> Block:
        """Record that deltas become zero where their variance over the models is below a limit, or zero."""
        from emberge.numerics import Selected

        return self._link(Selected(limit, len(self.models)))

    def variances(self) -> Block:
        """Return a block whose one delta is the variance of the deltas over the models."""
        from emberge.numerics import Variances

        return self._link(Variances(len(self.models)))

    def drop_at_random(self, densities: Tensor, salt: str) -> Block:
        """Record that each delta stays with its model's probability; `salt` tells draws apart."""
        from emberge.numerics import Dropped

        values = tuple(densities.tolist())
        kept = self._link(Dropped(values, self._keys(salt)))
        shape = (len(values), *[1] * (len(self.shape) or 0))
        return kept._copy(kept=densities.to(self._dtype).reshape(shape))

    def drop_ranked(self, lines: Sequence[tuple[float, float]], salt: str) -> Block:
        """Return the block with deltas that stay with the chance of their magnitude's rank in their row.

        A line has the least magnitude's chance and what each further rank adds; equal magnitudes are
        ranked in their order, and a tensor of one dimension is one row.
        """
        from emberge.numerics import SPAN, chances_of, drop_ranked, uniform

        width = rows_of(self.shape)[1]
        program = self._program(deltas=True)
        if program is None or self.start + self.size > SPAN:
            deltas = self.deltas
            kept = chances_of(deltas, lines, width)
            mask = uniform(deltas, self.start, self._keys(salt)).lt_(kept)
            return self.with_deltas(mask.mul_(deltas), kept=kept)
        deltas = program.decode()
        drop_ranked(deltas, lines, width, self.start, self._keys(salt), program.kernels)
        block = self.with_deltas(deltas)._copy(
            chances=lambda: chances_of(self.deltas, lines, width)
        )
        del block.__dict__["kept"]
        return block

    def scale_deltas(self, factors: Tensor) -> Block:
        """Record that each model's deltas are multiplied by its factor."""
        from emberge.numerics import Scaled

        return self._link(Scaled(tuple(factors.tolist())))

    def divide_deltas(self, divisors: Tensor) -> Block:
        """Record that each model's deltas are divided by its divisor."""
        from emberge.numerics import Divided

        return self._link(Divided(tuple(divisors.tolist())))

    def _link(self, link: Link) -> Block:
        linked = self.linked if self.links else self.__dict__.get("changed")
        if self.shares and linked is None:
            linked = self.own_deltas
        if linked is None and (self.stored is None or self.stored.base is None):
            self._base()
        block = self._copy(
            links=(*self.links, link),
            linked=linked,
            before=self.before or self,
            mixed=None,
            shares=(),
        )
        block.__dict__.pop("tensors", None)
        block.__dict__.pop("changed", None)
        return block

    @property
    def _dtype(self) -> Any:
        import torch

        return torch.float32 if self.stored is not None else self.like.dtype

    def _keys(self, salt: str) -> list[tuple[object, ...]]:
        keys = self.fingerprints or self.models
        return [(self.seed, self.name, key, salt) for key in keys]

    def combine(
        self, coefficients: Tensor | Sequence[float], vectors: Tensor | None = None
    ) -> Tensor:
        """Sum coefficient × model in model order, one fused step a model, so blocks do not matter."""
        from emberge.numerics import pooled_like

        values = [float(c) for c in coefficients]
        if vectors is None and self.shares and "tensors" not in self.__dict__:
            values = self._of_mixed(values)
            if (program := self._program(deltas=False)) is not None:
                return program.combine(values, add_base=False)
            vectors = self.mixed
        elif vectors is None and (program := self._program(deltas=False)) is not None:
            _require_count(self.name, values, program.models)
            return program.combine(values, add_base=False)
        vectors = self.tensors if vectors is None else vectors
        _require_count(self.name, values, len(vectors))
        return _add_up(values, vectors, pooled_like(vectors[0]))

    def uniform(self, salt: str = "") -> Tensor:
        """Return uniform numbers in [0, 1), shaped like `tensors`: a hash of every element's place.

        The number of an element depends on (seed, tensor name, the model's fingerprint, salt, its index in
        the full tensor), never on block size, order, device or worker.
        """
        from emberge.numerics import uniform

        return uniform(self.like, self.start, self._keys(salt))

    def with_sums(
        self, shares: Mapping[str, Sequence[float]], weights: Mapping[str, float]
    ) -> Block:
        """Return the block whose models are sums of those here, given by label each one's factors.

        Their rows are added up when they are asked for; `combine` needs no more than products of factors.
        """
        stored = self._is_stored
        summed = self._copy(
            models=tuple(shares),
            groups=tuple(shares),
            mixed=None if stored else self.tensors,
            shares=tuple(tuple(map(float, factors)) for factors in shares.values()),
            weights=self.weights.new_tensor([weights.get(label, 1.0) for label in shares]),
            fingerprints=(),
            changed=None,
            before=None,
            kept=None,
            stored=self.stored if stored else None,
            links=(),
            linked=None,
        )
        summed.__dict__.pop("tensors", None)
        if stored:
            del summed.__dict__["mixed"]
        return summed

    def _of_mixed(self, values: Sequence[float]) -> list[float]:
        """Return the factors of `mixed` that the models' factors come down to."""
        _require_count(self.name, values, len(self.shares))
        columns = zip(*self.shares, strict=True)
        return [sum(v * share for v, share in zip(values, of, strict=True)) for of in columns]

    def _sums(self) -> Tensor:
        """Return the models' rows, added up."""
        from emberge.numerics import pooled_like

        assert self.mixed is not None
        out = pooled_like(self.mixed, (len(self.shares), *self.mixed.shape[1:]))
        for factors, into in zip(self.shares, out, strict=True):
            used = [i for i, factor in enumerate(factors) if factor] or [0]
            some = slice(used[0], used[-1] + 1)
            _add_up(factors[some], self.mixed[some], into)
        return out

    def pick_models(self, index: Sequence[int]) -> Block:
        """Return the block of some of the models, by number in rising order."""

        def pick(values: Sequence[str]) -> tuple[str, ...]:
            return tuple(values[i] for i in index) if values else ()

        # Neighbours as a slice, which needs no copy of their rows.
        first, last = index[0], index[-1]
        rows = slice(first, last + 1) if last - first + 1 == len(index) else list(index)
        rest = {
            "models": pick(self.models),
            "groups": pick(self.groups),
            "fingerprints": pick(self.fingerprints),
            "weights": self.weights[rows],
        }
        if self._is_stored:
            assert self.stored is not None
            picked = self._copy(stored=self.stored.pick(index), **rest)
            picked.__dict__.pop("tensors", None)
            return picked
        changed = None if self.changed is None else self.changed[rows]
        return self.replace(tensors=self.tensors[rows], base=self.base, changed=changed, **rest)

    @property
    def _is_stored(self) -> bool:
        """True if nothing was changed since the rows were read."""
        changed = self.__dict__.get("changed") is not None
        return self.stored is not None and not (changed or self.links or self.shares)

    def merge_groups(self, merged: Mapping[str, Tensor], weights: Mapping[str, float]) -> Block:
        """Return the block whose models are the group labels, given each group's merged rows."""
        import torch

        from emberge.numerics import pooled_like

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


def _copy_of(values: Tensor) -> Tensor:
    from emberge.numerics import pooled_like

    return pooled_like(values).copy_(values)


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


# What a block may lack until it is asked for, and what it is then made of.
_MISSING = {
    "tensors": Block._tensors,
    "base": Block._stored_base,
    "changed": Block._linked,
    "mixed": lambda block: block.stored.decode(),
    "kept": lambda block: block.chances(),
}

"""Merging: blocks go in, measures are summed, one block comes out.

A stage sees aligned float32 rows of one tensor from every model and nothing else: no file, device,
thread or rank. That is what lets the runner stream, chunk, spread and resume any method.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from emberge.contracts.schedule import PerModel, PerTensor

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "BasePolicy",
    "Block",
    "Chain",
    "ChainSpec",
    "Measures",
    "MergeStrategy",
    "MergeTransform",
    "Options",
    "Resolve",
    "Rule",
    "Scope",
    "Stage",
    "Stats",
    "WeightRole",
    "chain",
    "merge_blocks",
]

BasePolicy = Literal["required", "optional", "forbidden"]
WeightRole = Literal["share", "scale", "unused"]
Scope = Literal["tensor", "layer", "model"]

_RUN = 8192
# What one `measure` call gives: names to tensors, numbers, or mappings of them.
Measures = Mapping[str, Any]
# stats[p] holds the joined measures of pass p of the stage itself.
Stats = Sequence[Measures]


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
        """All of them by name."""
        return self._values.items()

    def __repr__(self) -> str:
        return f"Options({self._values})"


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Whole rows of one tensor from every model, float32 (float64 in worked-number tests).

    `tensors` is stacked, [models, *rows]; a 0-D or 1-D tensor is one row. `base` has the shape of one
    model's rows. `start` counts the elements of the full tensor before this block, `index` is its
    place among the tensor's granules. `weights` is float64 [models], resolved for this tensor.
    `options` holds what the running stage's schedules resolve to; `statistics` this layer's or tensor's
    entries of a statistics file.
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
    original: Tensor | None = None
    """The deltas before the first link that changed them: what a rescaling link restores."""
    kept: Tensor | None = None
    """Probability with which each element was kept, broadcastable to `tensors`, after a random link."""

    def _base(self) -> Tensor:
        if self.base is None:
            raise ValueError(f"{self.name}: this stage needs a base")
        return self.base

    @property
    def deltas(self) -> Tensor:
        """Each model minus the base, [models, *rows]."""
        return self.tensors - self._base() if self.changed is None else self.changed

    def with_deltas(self, deltas: Tensor, kept: Tensor | None = None) -> Block:
        """The same block with base + deltas as its tensors; the number of models stays.

        A link that dropped elements at random says with which probability they were `kept`.
        """
        return dataclasses.replace(
            self,
            tensors=self._base() + deltas,
            changed=deltas,
            original=self.deltas if self.original is None else self.original,
            kept=self.kept if kept is None else kept,
        )

    def add_delta(self, delta: Tensor) -> Tensor:
        """Base plus a merged delta [*rows]: what a strategy in delta space returns."""
        return self._base() + delta

    def replace(self, **changes: Any) -> Block:
        """The same block with some fields exchanged; other tensors have no deltas of their own yet."""
        if "tensors" in changes or "base" in changes:
            for derived in ("changed", "original", "kept"):
                changes.setdefault(derived, None)
        return dataclasses.replace(self, **changes)

    def outline(self) -> Block:
        """The same block without rows: names, weights and options of the tensor, and no data."""

        def empty(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[:, :0]

        return dataclasses.replace(
            self,
            tensors=self.tensors[:, :0],
            base=None if self.base is None else self.base[:0],
            changed=empty(self.changed),
            original=empty(self.original),
            kept=empty(self.kept),
            start=0,
            index=0,
        )

    def gram(self, vectors: Tensor) -> Tensor:
        """Inner products of [n, *rows] as float64 [n, n]; sums over blocks give a whole tensor's.

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
        vectors = self.tensors if vectors is None else vectors
        values = [float(c) for c in coefficients]
        if len(values) != vectors.shape[0]:
            raise ValueError(
                f"{self.name}: {len(values)} coefficients for {vectors.shape[0]} models"
            )
        out = vectors[0] * values[0]
        for value, vector in zip(values[1:], vectors[1:], strict=True):
            out.add_(vector, alpha=value)
        return out

    def uniform(self, salt: str = "") -> Tensor:
        """Uniform numbers in [0, 1), shaped like `tensors`, a hash of every element's place.

        The number of an element depends on (seed, tensor name, the model's fingerprint, salt, its index in
        the full tensor), never on block size, order, device or worker.
        """
        from emberge.merging.noise import uniform

        keys = self.fingerprints or self.models
        return uniform(
            self.tensors, self.start, [(self.seed, self.name, key, salt) for key in keys]
        )

    def merge_groups(self, merged: Mapping[str, Tensor], weights: Mapping[str, float]) -> Block:
        """The block whose models are the group labels, given each group's merged rows."""
        import torch

        labels = tuple(dict.fromkeys(self.groups))
        return self.replace(
            models=labels,
            groups=labels,
            tensors=torch.stack([merged[label] for label in labels]),
            weights=self.weights.new_tensor([weights.get(label, 1.0) for label in labels]),
            fingerprints=(),
        )


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One link of a merge. Fields are its YAML options; properties may depend on them.

    Number options that may vary are typed `PerTensor` or `PerModel`; the runner resolves them into
    `block.options` before each call, a float or one float64 tensor [models].
    """

    @property
    def arity(self) -> range:
        """How many models it takes."""
        return range(1, 1_000_000)

    @property
    def base_policy(self) -> BasePolicy:
        """Whether a base is required, optional or forbidden."""
        return "optional"

    @property
    def weight_role(self) -> WeightRole:
        """What a model's weight means here."""
        return "share"

    @property
    def scope(self) -> Scope:
        """Over what measures are summed."""
        return "tensor"

    @property
    def whole(self) -> bool:
        """True asks for the full tensor in one block (SVD, solve); counted against the memory limit."""
        return False

    @property
    def passes(self) -> int:
        """How many times the runner feeds the blocks to `measure` before merging."""
        return 0

    def measure(self, block: Block, stats: Stats) -> Measures:
        """Pass number len(stats) over one block: sums that `join` adds up."""
        raise NotImplementedError(f"{type(self).__name__} has passes but no measure")

    def join(self, measures: Sequence[Measures]) -> Measures:
        """Unite dicts by key and add values, in the order given; associative, as it is called in parts."""
        return _join(measures)

    def wants(self, start: int, size: int, stats: Stats) -> bool:
        """Whether pass len(stats) has to see the `size` elements from `start`; others are not read."""
        return True

    def conclude(self, block: Block, stats: Stats) -> Measures:
        """What later passes and the merge see in place of stats[-1]; called once a tensor after each pass.

        `block` has no rows: it says name, models, weights and options. Here sums become coefficients, once
        for a tensor rather than once for each of its blocks. A text under the key "warning" is reported.
        """
        return stats[-1]

    def schedules(self) -> dict[str, PerTensor | PerModel]:
        """The options that vary over tensors or models."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: v for name, v in values.items() if isinstance(v, PerTensor | PerModel)}

    def nested(self) -> dict[str, Stage]:
        """The fields that are stages themselves (`by: linear`)."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: v for name, v in values.items() if isinstance(v, Stage)}


class MergeTransform(Stage):
    """N models to M models."""

    def apply(self, block: Block, stats: Stats) -> Block:
        """The block that the next link sees."""
        raise NotImplementedError


class MergeStrategy(Stage):
    """N models to one: the last link of a chain."""

    def merge(self, block: Block, stats: Stats) -> Tensor:
        """The merged rows, shaped like one model's rows."""
        raise NotImplementedError


@dataclass(frozen=True)
class ChainSpec:
    """A registered name for a chain: its links, and the defaults that differ from the links' own."""

    links: tuple[type[Stage], ...]
    defaults: Mapping[str, Any]
    doc: str

    def link_of(self, option: str) -> list[type[Stage]]:
        """The links that have this option; a chain's options are the union of its links'."""
        return [link for link in self.links if option in link.__dataclass_fields__]


def chain(*links: type[Stage], doc: str, **defaults: Any) -> ChainSpec:
    """Name a chain of stages, `chain(Trim, SignConsensus, doc="TIES …", density=0.5)`.

    Raises:
        TypeError: when a link but the last is a strategy, or a default fits no link.
    """
    *transforms, last = links
    for link in transforms:
        if not issubclass(link, MergeTransform):
            raise TypeError(f"{link.__name__} ends a chain and can only stand last")
    if not issubclass(last, MergeStrategy):
        raise TypeError(f"a chain ends with a strategy, and {last.__name__} is a transform")
    spec = ChainSpec(tuple(links), defaults, doc)
    for name in defaults:
        if not spec.link_of(name):
            raise TypeError(f"no link of the chain has the option '{name}'")
    return spec


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Another strategy for the tensors whose name contains `filter`; the first rule that fits wins."""

    filter: str
    strategy: tuple[Stage, ...]

    def matches(self, name: str) -> bool:
        """Whether this rule owns the tensor."""
        return self.filter == "*" or self.filter in name


Resolve = Callable[[Stage, Block], Options]


def resolve_plain(stage: Stage, block: Block) -> Options:
    """Options from the stage's own schedules, for a tensor outside the layers.

    A nested stage's options stand under its field's name.
    """
    values: dict[str, Any] = {}
    for name, schedule in stage.schedules().items():
        number = schedule.at(block.name, 0.0)
        many = isinstance(schedule, PerModel)
        values[name] = block.weights.new_full((len(block.models),), number) if many else number
    for name, inner in stage.nested().items():
        values[name] = resolve_plain(inner, block)
    return Options(values)


@dataclass(frozen=True)
class Chain:
    """The links of a merge, and how a link's schedules become numbers for a block."""

    links: tuple[Stage, ...]
    resolve: Resolve = resolve_plain

    def transform(self, stats: Sequence[Stats], block: Block, links: int) -> Block:
        """The block after the first `links` links, which are transforms."""
        for link, known in zip(self.links[:links], stats, strict=False):
            if not isinstance(link, MergeTransform):
                raise TypeError(f"{type(link).__name__} can only stand last in a chain")
            block = link.apply(self._ready(link, block), known)
        return block

    def measure(self, stats: Sequence[Stats], block: Block, position: int) -> Measures:
        """The next pass of the link at `position` over a block as the links before it leave it."""
        link = self.links[position]
        block = self.transform(stats, block, position)
        return link.measure(self._ready(link, block), stats[position])

    def conclude(self, stats: Sequence[Stats], block: Block, position: int) -> Measures:
        """The last pass of the link at `position` as later calls shall see it."""
        link = self.links[position]
        if type(link).conclude is Stage.conclude:
            return stats[position][-1]
        block = self.transform(stats, block.outline(), position)
        return link.conclude(self._ready(link, block), stats[position])

    def merge(self, stats: Sequence[Stats], block: Block) -> Tensor:
        """The merged rows, all measures being known."""
        last = self.links[-1]
        if not isinstance(last, MergeStrategy):
            raise TypeError(f"{type(last).__name__} cannot end a chain")
        block = self.transform(stats, block, len(self.links) - 1)
        return last.merge(self._ready(last, block), stats[-1])

    def _ready(self, link: Stage, block: Block) -> Block:
        return block.replace(options=self.resolve(link, block))


def scope_key(scope: Scope, block: Block) -> str:
    """What a tensor's measures are summed with: its own name, its layer's, or everything."""
    return {"tensor": block.name, "layer": block.layer, "model": ""}[scope]


def merge_blocks(
    links: Sequence[Stage], blocks: Sequence[Block], resolve: Resolve = resolve_plain
) -> Iterator[Tensor]:
    """Merge blocks that are in memory, in their order: what the runner does, in a few lines.

    `blocks` must be all blocks of the widest scope of any link.
    """
    run = Chain(tuple(links), resolve)
    stats: dict[str, list[list[Measures]]] = {b.name: [[] for _ in links] for b in blocks}
    first = {b.name: b for b in reversed(blocks)}
    for position, link in enumerate(links):
        for _ in range(link.passes):
            joined = _measure_blocks(run, blocks, stats, position)
            for name, block in first.items():
                stats[name][position].append(joined[scope_key(link.scope, block)])
                stats[name][position][-1] = run.conclude(stats[name], block, position)
    for block in blocks:
        yield run.merge(stats[block.name], block)


def _measure_blocks(
    run: Chain, blocks: Sequence[Block], stats: Mapping[str, Sequence[Stats]], position: int
) -> dict[str, Measures]:
    link = run.links[position]
    found: dict[str, list[Measures]] = {}
    for block in blocks:
        known = stats[block.name]
        group = found.setdefault(scope_key(link.scope, block), [])
        if link.wants(block.start, block.tensors[0].numel(), known[position]):
            group.append(run.measure(known, block, position))
    return {key: link.join(measures) for key, measures in found.items()}


def _join(measures: Sequence[Measures]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for one in measures:
        for key, value in one.items():
            if key not in joined:
                joined[key] = value
            elif isinstance(value, Mapping):
                joined[key] = _join([joined[key], value])
            else:
                joined[key] = joined[key] + value
    return joined


def rows_of(shape: Iterable[int]) -> tuple[int, int]:
    """(rows, elements a row) of a tensor: a 0-D or 1-D tensor is one row."""
    shape = tuple(shape)
    if len(shape) < 2:
        return 1, math.prod(shape)
    return shape[0], math.prod(shape[1:])

"""Chains of stages; each link measures and then transforms or merges, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from emberge.contracts import (
    Block,
    Measures,
    MergeStrategy,
    MergeTransform,
    Options,
    Pass,
    PerModel,
    PerTensor,
    Scope,
    Stage,
    Stats,
    find_nested_stages,
)

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

# Stage name to option name to one model's own value.
ModelOptions = Mapping[str, Mapping[str, PerTensor]]


def simplify_name(name: str) -> str:
    """Return a name without underscores and in small letters, as models' options may be written."""
    return name.replace("_", "").lower()


@dataclass(frozen=True)
class Resolver:
    """A resolver of a stage's schedules to numbers, by layer depth; models' own options have priority."""

    models: Mapping[str, ModelOptions] = field(default_factory=dict)
    depths: Mapping[str, float] = field(default_factory=dict)
    stored_names: Mapping[str, str] = field(default_factory=dict)
    """For each canonical name, the name in the result, which filters match."""
    _known: dict[tuple[int, str, tuple[str, ...]], tuple[Stage, Options]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __call__(self, stage: Stage, block: Block) -> Options:
        """Return the options' values: a float each, or a float64 array [models] for options of models."""
        # Every block of a tensor asks for the same options. The stage is kept, as its id is the key.
        key = id(stage), block.name, block.models
        if key in self._known:
            return self._known[key][1]
        import numpy as np

        values: dict[str, Any] = {}
        depth = self.depths.get(block.name, 0.0)
        stored_name = self.stored_names.get(block.name, block.name)
        for name, schedule in stage.schedules().items():
            number = schedule.at(stored_name, depth)
            if not isinstance(schedule, PerModel):
                values[name] = number
                continue
            numbers = [number] * len(block.models)
            for position, model in enumerate(block.models):
                if model in self.models and (own := self._find_own_schedule(stage, name, model)):
                    numbers[position] = own.at(stored_name, depth, number)
            values[name] = np.array(numbers, np.float64)
        for name, inner in find_nested_stages(stage).items():
            values[name] = self(inner, block)
        self._known[key] = stage, Options(**values)
        return self._known[key][1]

    def _find_own_schedule(self, stage: Stage, option: str, model: str) -> PerTensor | None:
        for name, options in self.models[model].items():
            if simplify_name(name) == simplify_name(stage.name_in_recipes) and option in options:
                return options[option]
        return None


@dataclass(frozen=True)
class Chain:
    """The stages of a merge in order, and the resolver of their schedules for a block."""

    links: tuple[Stage, ...]
    resolve: Resolver = field(default_factory=Resolver)

    def transform(self, measures_by_link: Sequence[Stats], block: Block, count: int) -> Block:
        """Return the block after the first `count` links, which are transforms."""
        for link, measures in zip(self.links[:count], measures_by_link, strict=False):
            if not isinstance(link, MergeTransform):
                raise TypeError(f"{type(link).__name__} can only stand last in a chain")
            block = link.apply(self._resolve_options(link, block), measures)
        return block

    def reads_base(self, position: int, number: int) -> bool:
        """Return whether a pass of the link at `position`, or a link before it, reads the base."""
        link = self.links[position]
        read_earlier = any(link.reads_base for link in self.links[:position])
        takes_base = link.base_policy != "forbidden" and link.passes[number].reads == "all"
        return read_earlier or takes_base

    @property
    def sees_base(self) -> bool:
        """True if any pass of a link, or the final merge, reads the base."""
        return any(
            link.reads_base
            or any(
                one_pass.reads != "nothing" and self.reads_base(position, number)
                for number, one_pass in enumerate(link.passes)
            )
            for position, link in enumerate(self.links)
        )

    def measure(self, measures_by_link: Sequence[Stats], block: Block, position: int) -> Measures:
        """Return the measures of the next pass of the link at `position` over the block it receives."""
        link = self.links[position]
        block = self.transform(measures_by_link, block, position)
        return link.measure(self._resolve_options(link, block), measures_by_link[position])

    def conclude(self, measures_by_link: Sequence[Stats], block: Block, position: int) -> Measures:
        """Return the conclusion of the last pass of the link at `position`, which replaces its measures."""
        link = self.links[position]
        if type(link).conclude is Stage.conclude:
            return measures_by_link[position][-1]
        block = self.transform(measures_by_link, block.without_rows(), position)
        return link.conclude(self._resolve_options(link, block), measures_by_link[position])

    def merge(
        self, measures_by_link: Sequence[Stats], block: Block, dtype: str = "float32"
    ) -> Tensor | np.ndarray:
        """Return the merged rows, given the measures of all passes; an array only without torch.

        They may have the `dtype` in which they will be stored already.
        """
        last = self.links[-1]
        if not isinstance(last, MergeStrategy):
            raise TypeError(f"{type(last).__name__} cannot end a chain")
        block = self.transform(measures_by_link, block, len(self.links) - 1)
        block = self._resolve_options(last, block)
        formula = last.formula(block, measures_by_link[-1])
        if formula is None:
            return last.merge(block, measures_by_link[-1])
        merged: Tensor | np.ndarray = block.evaluate(formula, dtype)
        return merged

    def _resolve_options(self, link: Stage, block: Block) -> Block:
        return block.replace(options=self.resolve(link, block))


def choose_scope_key(scope: Scope, block: Block) -> str:
    """Return the key under which a tensor's measures are summed: its name, or "" (all tensors)."""
    return block.name if scope == "tensor" else ""


def merge_blocks(
    links: Sequence[Stage], blocks: Sequence[Block], measured: Sequence[Block] | None = None
) -> Iterator[Tensor]:
    """Merge blocks that are in memory, in order and without a scheduler, and yield the merged rows of each.

    `blocks` must be all blocks of the widest scope of any link. `measured` are the same rows in other blocks,
    if those are measured instead.
    """
    import torch

    chain = Chain(tuple(links))
    measured = blocks if measured is None else measured
    measures_by_block: dict[str, list[list[Measures]]] = {
        b.name: [[] for _ in links] for b in blocks
    }
    first = {b.name: b for b in reversed(blocks)}
    for position, link in enumerate(links):
        for one_pass in link.passes:
            joined = _measure_blocks(chain, measured, measures_by_block, position, one_pass)
            for name, block in first.items():
                measures_by_block[name][position].append(
                    joined[choose_scope_key(one_pass.scope, block)]
                )
                measures_by_block[name][position][-1] = chain.conclude(
                    measures_by_block[name], block, position
                )
    for block in blocks:
        yield torch.as_tensor(chain.merge(measures_by_block[block.name], block))


def _measure_blocks(
    chain: Chain,
    blocks: Sequence[Block],
    measures_by_block: Mapping[str, Sequence[Stats]],
    position: int,
    one_pass: Pass,
) -> dict[str, Measures]:
    measures_by_group: dict[str, list[Measures]] = {}
    for block in blocks:
        measures_of_block = measures_by_block[block.name]
        group = measures_by_group.setdefault(choose_scope_key(one_pass.scope, block), [])
        if one_pass.reads == "nothing":
            needed, block = block.start == 0, block.without_rows()
        else:
            needed = one_pass.is_needed(measures_of_block[position])
        if needed:
            group.append(chain.measure(measures_of_block, block, position))
    return {key: one_pass.join(measures) for key, measures in measures_by_group.items()}

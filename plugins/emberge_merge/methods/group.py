"""Merging inside each group first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from emberge import (
    BasePolicy,
    Block,
    Measures,
    MergeStrategy,
    MergeTransform,
    Pass,
    Stats,
    WeightedSum,
    WeightRole,
    component,
)
from emberge.contracts import Options
from emberge.wording import count_noun

if TYPE_CHECKING:
    from torch import Tensor

Join = Callable[[Sequence[Measures]], Measures]
_GROUPS_KEY = "inside"  # key of the groups' measures, next to those that the runner reads


@dataclass(frozen=True, kw_only=True)
class Group(MergeTransform):
    """Merge the models of each `group` by one strategy; the following links merge the results.

    This is the first step of hierarchical fusion (CoDiEmb, 2025, arXiv:2508.11442, eq. 10). Every model must
    have a group. The recipe's weights are used inside the groups.

    Example:
        models: [{model: ./a1, group: a}, {model: ./a2, group: a}, {model: ./b, group: b}]
        strategy: [{group: {by: linear}}, slerp]
    """

    by: MergeStrategy = component("linear")
    """The strategy inside a group."""

    revision = 2

    @property
    def base_policy(self) -> BasePolicy:
        return self.by.base_policy

    @property
    def weight_role(self) -> WeightRole:
        return self.by.weight_role

    @property
    def passes(self) -> Sequence[Pass]:
        return [
            replace(one, join=partial(_join_by_group, one.join), is_needed=Pass.is_needed)
            for one in self.by.passes
        ]

    @property
    def reads_base(self) -> bool:
        return self.by.reads_base

    def needs_whole(self, block: Block) -> bool:
        return self.by.needs_whole(block)

    def problems(self, models: Sequence[str], groups: Sequence[str]) -> Iterator[str]:
        ungrouped = next((m for m, group in zip(models, groups, strict=True) if not group), None)
        if ungrouped is not None:
            yield f"the model '{ungrouped}' has no group; write {{model: …, group: …}}"
            return
        for label, size in Counter(groups).items():
            if size not in self.by.arity:
                name = self.by.name_in_recipes
                yield f"the group '{label}' has {count_noun(size, 'model')}, which '{name}' does not take"

    def remaining(self, models: Sequence[str], groups: Sequence[str]) -> Sequence[str]:
        return tuple(dict.fromkeys(groups))

    def measure(self, block: Block, stats: Stats) -> Measures:
        group_blocks = _split_groups(block)
        return {
            _GROUPS_KEY: {
                k: self.by.measure(group_block, _group_stats(k, stats))
                for k, group_block in group_blocks
            }
        }

    def conclude(self, block: Block, stats: Stats) -> Measures:
        conclusions = {
            k: self.by.conclude(group_block, _group_stats(k, stats))
            for k, group_block in _split_groups(block)
        }
        warnings = [
            f"group '{k}': {v['warning']}" for k, v in conclusions.items() if v.get("warning")
        ]
        findings = {
            f"{group}: {label}": number
            for group, conclusion in conclusions.items()
            for label, number in conclusion.get("findings", {}).items()
        }
        return {_GROUPS_KEY: conclusions, "warning": "; ".join(warnings), "findings": findings}

    def apply(self, block: Block, stats: Stats) -> Block:
        group_blocks = _split_groups(block)
        formulas = {
            label: self.by.formula(group_block, _group_stats(label, stats))
            for label, group_block in group_blocks
        }
        shares = {
            label: _spread_factors(block, label, formula.coefficients)
            for label, formula in formulas.items()
            if isinstance(formula, WeightedSum) and not formula.of_deltas
        }
        if len(shares) == len(group_blocks):
            return block.with_models([*shares], block.rows.with_sums([*shares.values()]))
        merged = [
            self.by.merge(group_block, _group_stats(label, stats))
            for label, group_block in group_blocks
        ]
        labels = [label for label, _ in group_blocks]
        return block.with_models(labels, block.rows.with_tensors(_stack(merged)))


def _join_by_group(join: Join, measures: Sequence[Measures]) -> Measures:
    inner_measures = [one[_GROUPS_KEY] for one in measures]
    labels = dict.fromkeys(label for one in inner_measures for label in one)
    return {_GROUPS_KEY: {k: join([one[k] for one in inner_measures if k in one]) for k in labels}}


def _group_stats(label: str, stats: Stats) -> Stats:
    return [one[_GROUPS_KEY][label] for one in stats]


def _split_groups(block: Block) -> list[tuple[str, Block]]:
    return [(label, _group_block(block, label)) for label in dict.fromkeys(block.groups)]


def _stack(rows: Sequence[Tensor]) -> Tensor:
    import torch
    from emberge.numerics import take_tensor_like

    return torch.stack(list(rows), out=take_tensor_like(rows[0], (len(rows), *rows[0].shape)))


def _spread_factors(block: Block, label: str, factors: Iterable[float]) -> list[float]:
    """Return a factor for every model of the block: the group's for a member, 0 for other models."""
    remaining = iter(factors)
    return [next(remaining) if group == label else 0.0 for group in block.groups]


def _group_block(block: Block, label: str) -> Block:
    index = [i for i, group in enumerate(block.groups) if group == label]

    def pick(values: Sequence[str]) -> tuple[str, ...]:
        return tuple(values[i] for i in index) if values else ()

    return block.replace(
        rows=block.rows.pick(index),
        models=pick(block.models),
        groups=pick(block.groups),
        fingerprints=pick(block.fingerprints),
        weights=block.weights[index],
        options=_pick_options(block.options.by, index),
        keep_probability=None,
    )


def _pick_options(options: Options, index: list[int]) -> Options:
    """Return a nested strategy's options for some of the models, without the other models' values."""
    values: dict[str, Any] = {}
    for name, value in vars(options).items():
        if isinstance(value, Options):
            values[name] = _pick_options(value, index)
        else:
            values[name] = value if isinstance(value, float) else value[index]
    return Options(**values)

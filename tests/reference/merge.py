"""A merge in plain torch: read the models, align them, run the chain, write the result.

There is no streaming, no journal, no thread and no compiled kernel: every tensor is one block in memory. What
`merge` gives, emberge gives byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from emberge import Block, Measures, MergeStrategy, MergeTransform, PerModel, Stage
from emberge.contracts import Options, find_nested_stages
from emberge.tensor_names import find_layer, measure_depths
from safetensors.torch import load_file, save_file
from torch import Tensor

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Recipe:
    """What decides the bytes of a merge: the links of the chain, and each model's name, weight and group."""

    links: Sequence[Stage]
    names: Sequence[str]
    weights: Sequence[float]
    groups: Sequence[str]
    seed: int = 0


def merge_folders(models: Sequence[Path], base: Path | None, recipe: Recipe, out: Path) -> None:
    """Merge models of one file each, and write the merged tensors to the file `out`."""
    states = [load_file(folder / "model.safetensors") for folder in models]
    base_state = None if base is None else load_file(base / "model.safetensors")
    save_file(merge(states, base_state, recipe), out)


def merge(models: Sequence[State], base: State | None, recipe: Recipe) -> dict[str, Tensor]:
    """Return the merged tensors, in the dtypes of the first model; tensors of integers are copied."""
    blocks = align(models, base, recipe)
    merged = run_chain(recipe.links, blocks)
    return {n: merged[n].to(t.dtype) if n in merged else t for n, t in models[0].items()}


def align(models: Sequence[State], base: State | None, recipe: Recipe) -> dict[str, Block]:
    """Return a block of each tensor of numbers: the same tensor of every model and the base, in float32."""
    return {
        name: Block.of(
            torch.stack([state[name].float() for state in models]),
            None if base is None else base[name].float(),
            name=name,
            layer=find_layer(name),
            models=tuple(recipe.names),
            groups=tuple(recipe.groups),
            weights=recipe.weights,
            seed=recipe.seed,
        )
        for name, tensor in models[0].items()
        if tensor.is_floating_point()
    }


def run_chain(links: Sequence[Stage], blocks: Mapping[str, Block]) -> dict[str, Tensor]:
    """Return each tensor's merged rows: a link measures all tensors, then transforms or merges them."""
    *transforms, last = links
    for link in transforms:
        assert isinstance(link, MergeTransform)
        blocks = resolve_options(link, blocks)
        stats = measure(link, blocks)
        blocks = {name: link.apply(block, stats[name]) for name, block in blocks.items()}
    assert isinstance(last, MergeStrategy)
    blocks = resolve_options(last, blocks)
    stats = measure(last, blocks)
    return {name: last.merge(block, stats[name]) for name, block in blocks.items()}


def resolve_options(link: Stage, blocks: Mapping[str, Block]) -> dict[str, Block]:
    """Return the blocks with the numbers of a link's options for each tensor, by its depth and name."""
    depth_by_name = measure_depths(blocks)

    def resolve(stage: Stage, block: Block) -> Options:
        values: dict[str, object] = {}
        for option, schedule in stage.schedules().items():
            number = schedule.at(block.name, depth_by_name[block.name])
            is_of_models = isinstance(schedule, PerModel)
            values[option] = np.full(len(block.models), number) if is_of_models else number
        inner = find_nested_stages(stage).items()
        return Options(**values, **{name: resolve(one, block) for name, one in inner})

    return {n: block.replace(options=resolve(link, block)) for n, block in blocks.items()}


def measure(link: Stage, blocks: Mapping[str, Block]) -> dict[str, list[Measures]]:
    """Return for each tensor what all passes of a link measured, and what follows from it."""
    stats: dict[str, list[Measures]] = {name: [] for name in blocks}
    for one in link.passes:
        measures = {
            n: link.measure(b, stats[n]) for n, b in blocks.items() if one.is_needed(stats[n])
        }
        for name, block in blocks.items():
            united = measures if one.scope == "model" else {name}
            joined = one.join([measures[other] for other in united if other in measures])
            stats[name].append(joined)
            stats[name][-1] = link.conclude(block.without_rows(), stats[name])
    return stats

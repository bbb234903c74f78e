"""Chains by the names that recipes use, and merges of small tensors cut into blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from emberge import (
    Block,
    MergeStrategy,
    MergeTransform,
    PerTensor,
    Stage,
    load_plugins,
    merge_blocks,
)
from emberge.contracts import ChainSpec, as_row_shape
from emberge.tensor_names import find_layer
from emberge_codiemb import LayerSoftmax
from emberge_merge import compute_chances
from emberge_merge.methods.sparse.ranked_draw import list_chances
from torch import Tensor

EVERYTHING = 1 << 30


def methods(kind: str) -> dict[str, Any]:
    """The merge transforms or strategies of the plugin `merge` by name: types and chains."""
    components = load_plugins(block=()).components
    return {c.name: c.type for c in components if (c.plugin, c.kind) == ("merge", kind)}


TRANSFORMS, STRATEGIES = methods("merge transform"), methods("merge strategy")
KNOWN: Mapping[str, type[MergeTransform] | type[MergeStrategy] | ChainSpec] = {
    **TRANSFORMS,
    **STRATEGIES,
    "layer_softmax": LayerSoftmax,
}


def chain(name: str, **options: Any) -> tuple[Stage, ...]:
    """The links of a component as a recipe would have them, with some options set."""
    known = KNOWN[name]
    if not isinstance(known, ChainSpec):
        return (made(known, options),)
    given = {**known.defaults, **options}
    own = [
        {k: v for k, v in given.items() if k in link.__dataclass_fields__} for link in known.links
    ]
    unknown = given.keys() - {option for options in own for option in options}
    assert not unknown, f"'{name}' has no option {unknown}"
    return tuple(made(link, options) for link, options in zip(known.links, own, strict=True))


def made(type_: type[Stage], options: Mapping[str, Any]) -> Stage:
    """A stage whose numbers may be given plainly."""
    annotations = {name: f.type for name, f in type_.__dataclass_fields__.items()}
    values = {}
    for name, value in options.items():
        kind = annotations[name]
        plain = not isinstance(value, PerTensor) and kind in ("PerTensor", "PerModel")
        default = type_.__dataclass_fields__[name].default
        wrap = type(default) if isinstance(default, PerTensor) else PerTensor
        values[name] = wrap(value) if plain else value
    return type_(**values)


def blocks_of(
    name: str,
    models: Sequence[Tensor],
    base: Tensor | None,
    *,
    weights: Sequence[float] | None = None,
    groups: Sequence[str] | None = None,
    rows: int = EVERYTHING,
    **more: Any,
) -> Iterator[Block]:
    """One tensor as blocks of so many rows."""
    shape = tuple(models[0].shape)
    count, width = (shape[0], models[0][0].numel()) if len(shape) > 1 else (1, models[0].numel())
    stacked = torch.stack(list(models))
    for index, start in enumerate(range(0, count, rows)):
        some = slice(start, start + rows) if len(shape) > 1 else slice(None)
        yield Block.of(
            stacked[:, some] if shape else stacked,
            None if base is None else base[some] if shape else base,
            name=name,
            shape=shape,
            layer=find_layer(name),
            groups=tuple(groups or [""] * len(models)),
            weights=np.array(weights or [1.0] * len(models), np.float64),
            start=start * width,
            index=index,
            **more,
        )


def merge(
    links: Sequence[Stage],
    models: Sequence[Mapping[str, Tensor]],
    base: Mapping[str, Tensor] | None = None,
    **how: Any,
) -> dict[str, Tensor]:
    """Merge whole models with `merge_blocks`; `how` as for `blocks_of`."""
    blocks = [
        block
        for name in models[0]
        for block in blocks_of(
            name, [m[name] for m in models], None if base is None else base[name], **how
        )
    ]
    parts: dict[str, list[Tensor]] = {}
    for block, rows in zip(blocks, merge_blocks(links, blocks), strict=True):
        parts.setdefault(block.name, []).append(rows)
    return {
        name: torch.cat(found) if found[0].dim() > 1 else found[0] for name, found in parts.items()
    }


def merge_one(
    links: Sequence[Stage], models: Sequence[Any], base: Any = None, **how: Any
) -> Tensor:
    """Merge one tensor given as lists, in float64."""
    tensors = [{"w": torch.as_tensor(m, dtype=torch.float64)} for m in models]
    origin = None if base is None else {"w": torch.as_tensor(base, dtype=torch.float64)}
    return merge(links, tensors, origin, **how)["w"]


def keep_probability(delta: Tensor, density: float, epsilon: float) -> Tensor:
    """The chance of each element of a delta to be kept by `drop_by_rank`."""
    width = as_row_shape(delta.shape)[1]
    return list_chances(delta[None], [compute_chances(density, epsilon, width)], width)[0]

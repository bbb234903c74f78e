"""Blocks of a model: its layers, the embeddings before and the modules behind them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from emberge import PerTensor
from emberge.merging import MergePlan
from emberge.tensor_names import layer_order

_NUMBERED = re.compile(r"\.\d+$")


@dataclass(frozen=True)
class Blocks:
    """Blocks in order, by the names of their layers, and the place of each tensor's block."""

    names: Sequence[str]
    place: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.names)

    def weights(self, values: Sequence[float], otherwise: float) -> PerTensor:
        """Return the weight by tensor of one member, given it by block; other tensors have `otherwise`."""
        parts = self._name_parts()
        entries = [{"filter": part, "value": values[place]} for part, place in parts.items()]
        return PerTensor([*entries, {"value": otherwise}])

    def _name_parts(self) -> dict[str, int]:
        """Return parts of names in the order in which they are tried, each with its block's place."""
        begins = {
            _common_beginning([name for name, here in self.place.items() if here == place]): place
            for place in range(len(self))
        }
        # A layer's tensors may have the names of modules outside the layers in theirs.
        order = sorted(begins, key=lambda b: (not _NUMBERED.search(self.names[begins[b]]), -len(b)))
        parts = {begin: begins[begin] for begin in order}
        if all(parts) and all(
            _first_part_place(parts, name) == p for name, p in self.place.items()
        ):
            return parts
        # Whole names, of which one that has another in it comes first.
        return {name: self.place[name] for name in sorted(self.place, key=lambda n: -len(n))}


def blocks_of(plan: MergePlan) -> Blocks:
    """Return the blocks of what a merge merges: one for each layer, one for all else of one module."""
    layers = {one.name: plan.layers[one.name] for one in plan.tensors if one.action == "merge"}
    names = layer_order(layers.values())
    return Blocks(names, {name: names.index(layer) for name, layer in layers.items()})


def _common_beginning(names: Sequence[str]) -> str:
    """Return what names have in common at their beginning, word by word; of a single one all."""
    words = zip(*(name.split(".") for name in names), strict=False)
    shared = [some[0] for some in takewhile(lambda some: len(set(some)) == 1, words)]
    return names[0] if len(names) == 1 else "".join(f"{word}." for word in shared)


def _first_part_place(parts: Mapping[str, int], name: str) -> int | None:
    return next((place for part, place in parts.items() if part in name), None)

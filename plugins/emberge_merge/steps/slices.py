"""Slices of the `merge` step: layers of several models, stacked into one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from emberge import ModelRef, PerModel, PerTensor, Stage
from emberge.engine import MergeInput

if TYPE_CHECKING:
    from emberge.engine import MergeSlice

__all__ = ["LayersEntry", "SliceBase", "SliceEntry", "merge_slices", "slice_models"]


@dataclass(frozen=True, kw_only=True)
class SliceBase:
    """The base of a slice: `layers` are [first, end], the end being left out."""

    model: ModelRef
    layers: tuple[int, int]

    def __post_init__(self) -> None:
        _require_order(self.layers)


@dataclass(frozen=True, kw_only=True)
class LayersEntry:
    """Some layers of a model: `layers` are [first, end], the end being left out."""

    model: ModelRef
    layers: tuple[int, int]
    weight: PerTensor = field(default_factory=lambda: PerTensor(1.0))
    options: dict[str, dict[str, PerModel]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_order(self.layers)


@dataclass(frozen=True, kw_only=True)
class SliceEntry:
    """Layers of the result, merged from as many layers of each model.

    `strategy` is the merge's own by default. Weights and options that are lists over depth go from the
    slice's first layer to its last.
    """

    models: tuple[LayersEntry, ...]
    base: SliceBase | None = None
    strategy: tuple[Stage, ...] | None = None

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("'models' of a slice is empty")
        ranges = [one.layers for one in self.models]
        ranges += [self.base.layers] if self.base is not None else []
        if len({end - first for first, end in ranges}) > 1:
            raise ValueError("all 'layers' of a slice must be the same number of layers")


def _require_order(layers: tuple[int, int]) -> None:
    if not 0 <= layers[0] < layers[1]:
        raise ValueError(f"'layers' are [first, end] with the end left out, not {list(layers)}")


def slice_models(slices: Sequence[SliceEntry]) -> Iterator[ModelRef]:
    """Every model and base of the slices, each as often as it is named."""
    for one in slices:
        yield from (entry.model for entry in one.models)
        if one.base is not None:
            yield one.base.model


def merge_slices(
    slices: Sequence[SliceEntry], found: Callable[[ModelRef], MergeInput]
) -> tuple[MergeSlice, ...]:
    """The slices for the runner; `found` gives a model that a recipe names."""
    from emberge.engine import MergeSlice

    ready = []
    for number, one in enumerate(slices):
        inputs = tuple(
            replace(
                _layers(found(entry.model), entry.layers, number),
                weight=entry.weight,
                options=entry.options,
            )
            for entry in one.models
        )
        base = None
        if one.base is not None:
            base = _layers(found(one.base.model), one.base.layers, number, "base ")
        first, end = one.models[0].layers
        ready.append(MergeSlice(inputs, end - first, base, one.strategy))
    return tuple(ready)


def _layers(model: MergeInput, layers: tuple[int, int], number: int, what: str = "") -> MergeInput:
    """The model by a name that tells its layers, and of which slice they are."""
    name = f"{what}{model.name} [{layers[0]}, {layers[1]}] of slice {number}"
    return replace(model, name=name, first=layers[0])


def slice_details(slices: Sequence[SliceEntry]) -> list[dict[str, str | list[str]]]:
    """What was stacked, as an artifact tells it."""
    return [
        {
            "models": [f"{e.model.text} [{e.layers[0]}, {e.layers[1]}]" for e in one.models],
            **({"base": one.base.model.text} if one.base is not None else {}),
        }
        for one in slices
    ]

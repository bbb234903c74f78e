"""Routing of a planned model, and its format: names, config, limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from emberge import WholeNumber
from emberge.tensor_files import TensorSpec

from emberge_moe.upcycle.dense_model import DenseModel

Layers = Literal["alternate", "all"] | tuple[WholeNumber, ...]


@dataclass(frozen=True)
class LayerRouting:
    """Routed layers of a model with `depth` layers, and the options of their routing."""

    depth: int
    layers: tuple[int, ...]
    experts: int
    top_k: int
    normalize_gates: bool = True

    @property
    def complete(self) -> bool:
        """True if every layer is routed."""
        return len(self.layers) == self.depth

    @property
    def dense_layers(self) -> list[int]:
        """The layers that keep their feed-forward block."""
        return [layer for layer in range(self.depth) if layer not in self.layers]


@dataclass(frozen=True)
class RoutedBlock:
    """A planned routed block: the dense block's path, its router, and experts by dense tensor names."""

    path: str
    router: TensorSpec
    experts: Sequence[Mapping[str, TensorSpec]]


@dataclass(frozen=True)
class RestoredTensors:
    """A routed model's tensors under the dense model's names and shapes.

    `experts` has for each layer its experts' tensors by the dense tensors' full names, and `other_tensors`
    all other tensors of the dense model.
    """

    experts: dict[int, Sequence[Mapping[str, TensorSpec]]] = field(default_factory=dict)
    other_tensors: list[TensorSpec] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class RoutedTarget:
    """A format of routed models, by its model type."""

    name: str

    @property
    def code(self) -> Path | None:
        """The code saved with the model, run with `trust_remote_code`; None for a native class."""
        return None

    @property
    def loading(self) -> str:
        """Note on the code that users must trust to load the result; "" for a class of transformers."""
        return ""

    def refusals(self, dense: DenseModel, routing: LayerRouting) -> Iterator[str]:
        """Yield the reasons why this format would change the model, or cannot express the routing."""
        raise NotImplementedError

    def config(self, dense: DenseModel, routing: LayerRouting) -> dict[str, Any]:
        """Return the config of the routed model."""
        raise NotImplementedError

    def block(self, dense: DenseModel, block: RoutedBlock) -> Iterator[TensorSpec]:
        """Yield the tensors of a routed block, under their names in this format."""
        raise NotImplementedError

    def replace_tensor(self, dense: DenseModel, spec: TensorSpec) -> Iterator[TensorSpec]:
        """Yield the tensors that replace a tensor outside routed blocks: by default the tensor itself."""
        yield spec

    def dense_config(self, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the copy of the dense model's config in a routed model's config; None without one."""
        raise NotImplementedError

    def restored(
        self, config: Mapping[str, Any], specs: Mapping[str, TensorSpec]
    ) -> RestoredTensors:
        """Return a routed model's tensors under the dense model's names and shapes."""
        raise NotImplementedError


def choose_layers(layers: Layers, depth: int) -> tuple[int, ...]:
    """Return the indices of the layers that an option names, in order.

    Raises:
        ValueError: if a model of this depth lacks a layer, or no layer is named.
    """
    if layers == "alternate":
        numbers = tuple(range(1, depth, 2))
    elif layers == "all":
        numbers = tuple(range(depth))
    else:
        numbers = tuple(sorted(set(layers)))
    invalid_layers = [layer for layer in numbers if not 0 <= layer < depth]
    if invalid_layers:
        raise ValueError(
            f"layer {invalid_layers[0]} does not exist: the model has layers 0 to {depth - 1}"
        )
    if not numbers:
        raise ValueError(f"none of the model's layers, {depth} in number, would be routed")
    return numbers

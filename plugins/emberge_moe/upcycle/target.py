"""The format that a dense model is upcycled to: its names, its config, and what it cannot express."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.tensor_files import TensorSpec

from emberge_moe.upcycle.dense_model import DenseModel
from emberge_moe.upcycle.routing import LayerRouting


@dataclass(frozen=True)
class RoutedBlock:
    """A layer's block to be: where the dense one is, its router, and experts by the dense tensors' names."""

    path: str
    router: TensorSpec
    experts: Sequence[Mapping[str, TensorSpec]]


@dataclass(frozen=True)
class Restored:
    """A routed model's tensors in terms of the dense model.

    `experts` has for each layer its experts' tensors by the dense tensors' full names, `routers` each layer's
    router, and `rest` everything that the dense model has beside.
    """

    routers: dict[int, TensorSpec] = field(default_factory=dict)
    experts: dict[int, Sequence[Mapping[str, TensorSpec]]] = field(default_factory=dict)
    rest: list[TensorSpec] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class RoutedTarget:
    """A format of routed models, by its model type."""

    name: str

    @property
    def code(self) -> Path | None:
        """The file that a folder must have beside it and that others must trust; None for a native class."""
        return None

    @property
    def loading(self) -> str:
        """The code that others must trust to load the result, in words; "" for a class of transformers."""
        return ""

    @property
    def opened(self) -> bool:
        """True if emberge itself has the class."""
        return True

    def refusals(self, dense: DenseModel, routing: LayerRouting) -> Iterator[str]:
        """Yield the reasons for which this format would change the model or cannot be routed so."""
        raise NotImplementedError

    def config(self, dense: DenseModel, routing: LayerRouting) -> dict[str, Any]:
        """Return the config of the routed model."""
        raise NotImplementedError

    def block(self, dense: DenseModel, block: RoutedBlock) -> Iterator[TensorSpec]:
        """Yield the tensors of a routed block, under their names in this format."""
        raise NotImplementedError

    def rest(self, dense: DenseModel, spec: TensorSpec) -> Iterator[TensorSpec]:
        """Yield the tensors that another tensor of the dense model becomes: by default itself."""
        yield spec

    def dense_config(self, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the dense model's config, of which a routed one keeps a copy; None without one."""
        raise NotImplementedError

    def restored(self, config: Mapping[str, Any], specs: Mapping[str, TensorSpec]) -> Restored:
        """Return a routed model's tensors in terms of the dense model."""
        raise NotImplementedError

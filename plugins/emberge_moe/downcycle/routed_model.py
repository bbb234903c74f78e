"""A routed checkpoint in terms of the dense model that it was upcycled from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from emberge import CheckpointError
from emberge.model_folder import Checkpoint
from emberge.tensor_files import TensorSpec

from emberge_moe.upcycle.dense_model import is_routed
from emberge_moe.upcycle.expert_tensors import Averaged
from emberge_moe.upcycle.native import NATIVE
from emberge_moe.upcycle.routed_format import ROUTED
from emberge_moe.upcycle.target import Restored, RoutedTarget

_TARGETS: Mapping[str, RoutedTarget] = {**NATIVE, ROUTED.name: ROUTED}


@dataclass(frozen=True)
class RoutedModel:
    """A routed checkpoint."""

    checkpoint: Checkpoint

    @cached_property
    def target(self) -> RoutedTarget:
        """The format.

        Raises:
            CheckpointError: for a dense model, and for formats that no dense model is known of.
        """
        config, folder = self.checkpoint.config, self.checkpoint.folder
        kind = str(config.get("model_type"))
        if not is_routed(config):
            raise CheckpointError(f"{folder}: has no experts ({kind}), so it is dense already")
        target = _TARGETS.get(kind)
        if target is None or target.dense_config(config) is None:
            raise CheckpointError(
                f"{folder}: its config does not have the dense model that it was upcycled from, so there is "
                "none to go back to; only models that emberge upcycled have it"
            )
        return target

    @property
    def dense_config(self) -> Mapping[str, Any]:
        """The config of the dense model."""
        return self.target.dense_config(self.checkpoint.config) or {}

    @cached_property
    def restored(self) -> Restored:
        """The tensors in terms of the dense model."""
        return self.target.restored(self.checkpoint.config, self.checkpoint.specs)

    @property
    def top_k(self) -> int:
        """Experts that each token goes to."""
        config = self.checkpoint.config
        return int(config.get("num_experts_per_tok") or config["top_k"])

    def averaged(self, shares: Mapping[int, Sequence[float]] | None = None) -> Iterator[TensorSpec]:
        """Yield the dense model's tensors, with each layer's experts averaged by their shares, or evenly."""
        yield from self.restored.rest
        for layer, experts in self.restored.experts.items():
            weights = tuple(shares[layer]) if shares is not None else (1.0,) * len(experts)
            for name, spec in experts[0].items():
                parts = tuple(one[name] for one in experts)
                yield Averaged(name, spec.shape, spec.dtype, parts=parts, weights=weights)

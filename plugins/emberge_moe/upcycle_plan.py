"""Plan of an upcycled model: its tensors from headers alone, its files, and the facts about it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from emberge import CheckpointError, Workspace, make_seed
from emberge.tensor_files import TensorSpec
from emberge.wording import count_noun

from emberge_moe.dense_model import ROUTED_TYPE, DenseModel
from emberge_moe.derived_tensors import NormalTensor
from emberge_moe.routed_format import (
    CODE,
    LayerRouting,
    build_routed_config,
    list_block_tensors,
    list_loaded_tensors,
)

_EXPERT_PATTERN = re.compile(r"\.experts\.\d+\.")
_DEVIATION = 0.02  # of the weights of random routers


@dataclass(frozen=True)
class UpcyclePlan:
    """A routed model to be built from a dense one.

    Each of `members` gives one expert; a single member, which may be `dense` itself, gives all experts. All
    other tensors are those of `dense`. Routers are drawn by `seed`. `contents` are the models' fingerprints.
    """

    dense: DenseModel
    members: Sequence[DenseModel]
    routing: LayerRouting
    seed: int = 0
    contents: Sequence[str] = ()

    @cached_property
    def tensors(self) -> list[TensorSpec]:
        """The tensors of the result, in the dense model's order.

        Raises:
            CheckpointError: if a model lacks the blocks' tensors under the names of its type, or has them in
                other shapes than the dense model.
        """
        self._require_blocks()
        tensors: list[TensorSpec] = []
        started_layers: set[int] = set()
        for name, spec in self.dense.checkpoint.specs.items():
            block = self.dense.find_block(name)
            if block is None or block[0] not in self.routing.layers:
                tensors += list_loaded_tensors(self.dense, spec)
            elif block[0] not in started_layers:
                started_layers.add(block[0])
                tensors += self._list_block(block[0])
        return tensors

    def _require_blocks(self) -> None:
        for model in (self.dense, *self.members):
            for layer in self.routing.layers:
                if layer not in model.blocks:
                    raise CheckpointError(
                        f"{model.checkpoint.folder}: has no tensors of the feed-forward block of layer "
                        f"{layer} under the names of {model.model_type}; load it with transformers and save "
                        "it again"
                    )
                if model.list_shapes(layer) != self.dense.list_shapes(layer):
                    raise CheckpointError(
                        f"{model.checkpoint.folder}: its feed-forward block of layer {layer} has other "
                        f"tensors or shapes than that of {self.dense.checkpoint.folder}; choose members of "
                        "one architecture"
                    )

    def _list_block(self, layer: int) -> Iterator[TensorSpec]:
        """Yield the router and the experts of a layer."""
        block = self.dense.blocks[layer]
        count = self.routing.experts
        sources = self.members if len(self.members) > 1 else [*self.members] * count
        experts = [
            {name: model.blocks[layer].tensors[name] for name in block.tensors} for model in sources
        ]
        dtype = next(iter(block.tensors.values())).dtype
        seed = make_seed(self.seed, "router", layer)
        shape = (count, self.dense.width)
        router = NormalTensor("router", shape, dtype, deviation=_DEVIATION, seed=seed)
        return list_block_tensors(self.dense, block.path, router, experts)

    @property
    def key(self) -> list[object]:
        """JSON values of all that decides the bytes of the result."""
        return [ROUTED_TYPE, repr(self.routing), list(self.contents), self.seed]

    def write(self, workspace: Workspace) -> None:
        """Write the model into the step's folder, with one copy job for each tensor."""
        from emberge.merging import UPCYCLING_KEY, build_result

        checkpoint = self.dense.checkpoint
        config = build_routed_config(self.dense, self.routing)
        # Models that are trained from this one keep it: a merge knows its siblings by it.
        config[UPCYCLING_KEY] = workspace.provenance["fingerprint"]
        files: dict[str, Any] = {
            checkpoint.locate_in_trunk("config.json"): config,
            checkpoint.locate_in_trunk(CODE.name): CODE.read_text(encoding="utf-8"),
        }
        build_result(workspace, self.tensors, template=checkpoint, key=self.key, files=files)

    @property
    def parameters(self) -> dict[str, int]:
        """Number of `all` parameters, and of those `active` for one token."""
        in_experts = sum(one.elements for one in self.tensors if _EXPERT_PATTERN.search(one.name))
        total = sum(spec.elements for spec in self.tensors)
        used = in_experts * self.routing.top_k // self.routing.experts
        return {"all": total, "active": total - in_experts + used}

    def list_facts(self) -> dict[str, Any]:
        """Return the facts of the result for the artifact."""
        return {
            "from": self.dense.model_type,
            "format": ROUTED_TYPE,
            "loads_with": f"its class is {CODE.name} in the folder",
            "layers": list(self.routing.layers),
            "experts": self.routing.experts,
            "top_k": self.routing.top_k,
            "normalize_gates": self.routing.normalize_gates,
            "parameters": self.parameters,
        }

    def list_preview(self) -> list[str]:
        """Return lines for the terminal that say what the result will be."""
        before = sum(spec.elements for spec in self.dense.checkpoint.specs.values())
        after = self.parameters
        return [
            f"{self.dense.model_type} becomes {ROUTED_TYPE}, which needs trust_remote_code=True: its class "
            f"is {CODE.name} in the folder",
            f"layers {', '.join(map(str, self.routing.layers))}: "
            f"{count_noun(self.routing.experts, 'expert')}, {self.routing.top_k} a token",
            f"parameters {before:,} become {after['all']:,}, {after['active']:,} of them active for a token",
        ]

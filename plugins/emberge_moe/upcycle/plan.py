"""Plan of a routed model, from headers alone, and the function that builds its folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from emberge import CheckpointError, Workspace, stable_seed
from emberge.tensor_files import TensorSpec
from emberge.wording import count_noun

from emberge_moe.upcycle.dense_model import BLOCKS, ROUTED, DenseModel, LayerRouting, is_routed
from emberge_moe.upcycle.expert_tensors import Normal
from emberge_moe.upcycle.routed_format import (
    CODE,
    list_block_tensors,
    replace_tensor,
    routed_config,
)

_EXPERTS = re.compile(r"\.experts\.\d+\.")  # in the names of experts' tensors
_DEVIATION = 0.02  # of the weights of random routers


def refuse_dense(dense: DenseModel) -> None:
    """Refuse a model that is not a dense transformer with known feed-forward blocks.

    Raises:
        CheckpointError: if it is not; the message has the reason.
    """
    folder = dense.checkpoint.folder
    if is_routed(dense.config):
        raise CheckpointError(
            f"{folder}: is routed already ({dense.kind}); upcycle the dense model, or make this one dense "
            "with a downcycle step"
        )
    if dense.kind not in BLOCKS:
        raise CheckpointError(
            f"{folder}: the feed-forward blocks of model type '{dense.kind}' are not known; those of "
            f"{', '.join(BLOCKS)} are"
        )


def routed_tensors(
    dense: DenseModel, members: Sequence[DenseModel], routing: LayerRouting, seed: int = 0
) -> Iterator[TensorSpec]:
    """Yield the tensors of the routed model, in the dense model's order, with routers drawn by `seed`.

    Each of `members` gives one expert; a single member, which may be `dense` itself, gives all experts.

    Raises:
        CheckpointError: if a model lacks the blocks' tensors under the names of its type, or has them in
            other shapes than the dense model.
    """
    _require_blocks(dense, members, routing)
    started_layers: set[int] = set()
    for name, spec in dense.checkpoint.specs.items():
        block = dense.block_of(name)
        if block is None or block[0] not in routing.layers:
            yield from replace_tensor(dense, spec)
        elif block[0] not in started_layers:
            started_layers.add(block[0])
            yield from _list_block(block[0], dense, members, routing, seed)


def _require_blocks(
    dense: DenseModel, members: Sequence[DenseModel], routing: LayerRouting
) -> None:
    for model in (dense, *members):
        for layer in routing.layers:
            if layer not in model.blocks:
                raise CheckpointError(
                    f"{model.checkpoint.folder}: has no tensors of the feed-forward block of layer {layer} "
                    f"under the names of {model.kind}; load it with transformers and save it again"
                )
            if _list_shapes(model, layer) != _list_shapes(dense, layer):
                raise CheckpointError(
                    f"{model.checkpoint.folder}: its feed-forward block of layer {layer} has other tensors "
                    f"or shapes than that of {dense.checkpoint.folder}; choose members of one architecture"
                )


def _list_shapes(model: DenseModel, layer: int) -> dict[str, tuple[int, ...]]:
    return {name: spec.shape for name, spec in model.blocks[layer][1].items()}


def _list_block(
    layer: int, dense: DenseModel, members: Sequence[DenseModel], routing: LayerRouting, seed: int
) -> Iterator[TensorSpec]:
    path, specs = dense.blocks[layer]
    expert_sources = members if len(members) > 1 else [*members] * routing.experts
    experts = [{name: one.blocks[layer][1][name] for name in specs} for one in expert_sources]
    dtype = next(iter(specs.values())).dtype
    shape, layer_seed = (routing.experts, dense.width), stable_seed(seed, "router", layer)
    router = Normal("router", shape, dtype, deviation=_DEVIATION, seed=layer_seed)
    return list_block_tensors(dense, path, router, experts)


@dataclass(frozen=True)
class Plan:
    """Plan of an upcycled model: the models, the routing, and the seed of the routers.

    `content` has the fingerprints of the models.
    """

    dense: DenseModel
    members: Sequence[DenseModel]
    routing: LayerRouting
    seed: int
    content: Sequence[str]

    @property
    def tensors(self) -> list[TensorSpec]:
        """The tensors of the result."""
        return [*routed_tensors(self.dense, self.members, self.routing, self.seed)]

    @property
    def key(self) -> list[object]:
        """All that decides the bytes, as JSON values."""
        return [ROUTED, repr(self.routing), list(self.content), self.seed]


def build(plan: Plan, workspace: Workspace) -> list[TensorSpec]:
    """Write the model into the step's folder, with one copy job per tensor, and return its tensors."""
    from emberge.merging import build_result

    tensors, checkpoint = plan.tensors, plan.dense.checkpoint
    config = routed_config(plan.dense, plan.routing)
    # Models that are trained from this one keep it: a merge knows its siblings by it.
    config["upcycling"] = workspace.provenance["fingerprint"]
    files: dict[str, Any] = {
        checkpoint.in_trunk("config.json"): config,
        checkpoint.in_trunk(CODE.name): CODE.read_text(encoding="utf-8"),
    }
    build_result(workspace, tensors, template=checkpoint, key=plan.key, files=files)
    return tensors


def describe_result(plan: Plan, tensors: Sequence[TensorSpec]) -> dict[str, Any]:
    """Return the facts of the result for the artifact."""
    routing = plan.routing
    total_count, active_count = _count_parameters(tensors, routing)
    return {
        "from": plan.dense.kind,
        "format": ROUTED,
        "loads_with": f"its class is {CODE.name} in the folder",
        "layers": list(routing.layers),
        "experts": routing.experts,
        "top_k": routing.top_k,
        "normalize_gates": routing.normalize_gates,
        "parameters": {"all": total_count, "active": active_count},
    }


def summary(dense: DenseModel, routing: LayerRouting, tensors: Sequence[TensorSpec]) -> list[str]:
    """Return the preview of the result as lines for the terminal."""
    total_count, active_count = _count_parameters(tensors, routing)
    dense_count = sum(spec.elements for spec in dense.checkpoint.specs.values())
    return [
        f"{dense.kind} becomes {ROUTED}, which needs trust_remote_code=True: its class is {CODE.name} in the "
        "folder",
        f"layers {', '.join(map(str, routing.layers))}: {count_noun(routing.experts, 'expert')}, "
        f"{routing.top_k} a token",
        f"parameters {dense_count:,} become {total_count:,}, {active_count:,} of them active for a token",
    ]


def _count_parameters(tensors: Sequence[TensorSpec], routing: LayerRouting) -> tuple[int, int]:
    """Return the number of all parameters, and of those active for one token."""
    expert_count = sum(tensor.elements for tensor in tensors if _EXPERTS.search(tensor.name))
    total_count = sum(tensor.elements for tensor in tensors)
    return total_count, total_count - expert_count + expert_count * routing.top_k // routing.experts

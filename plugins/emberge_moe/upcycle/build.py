"""Building of an upcycled model's folder, and what is known of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from emberge import Workspace
from emberge.tensor_files import TensorSpec
from emberge.wording import count_noun

from emberge_moe.upcycle.dense_model import DenseModel
from emberge_moe.upcycle.plan import Beginning, routed_tensors
from emberge_moe.upcycle.routing import LayerRouting
from emberge_moe.upcycle.target import RoutedTarget

# Tensors of which each expert has its own, or an equal part.
_EXPERTS = re.compile(r"\.experts\.(?:\d+\.|mlp\.)|\.(?:input|output)_linear\.")


@dataclass(frozen=True)
class Plan:
    """All that decides an upcycled model: the models, the routing, the format, and how it begins.

    `content` are the fingerprints of the models.
    """

    dense: DenseModel
    members: Sequence[DenseModel]
    routing: LayerRouting
    target: RoutedTarget
    beginning: Beginning
    content: Sequence[str]

    @property
    def tensors(self) -> list[TensorSpec]:
        """The tensors of the result."""
        return [
            *routed_tensors(self.dense, self.members, self.routing, self.target, self.beginning)
        ]

    def router(self, layer: int) -> TensorSpec:
        """Return the router of a layer as it begins."""
        return self.beginning.router(layer, (self.routing.experts, self.dense.width), "float32")

    @property
    def key(self) -> list[object]:
        """All that decides the bytes, as JSON values."""
        begun = self.beginning
        return [
            *(self.target.name, repr(self.routing), list(self.content)),
            *(begun.deviation, begun.noise, begun.seed, begun.routers is not None),
        ]


def build(plan: Plan, workspace: Workspace) -> list[TensorSpec]:
    """Write the model into the step's folder, a copy job a tensor, and return its tensors."""
    from emberge.merging import build_result

    tensors, checkpoint = plan.tensors, plan.dense.checkpoint
    config = plan.target.config(plan.dense, plan.routing)
    # Models that are trained from this one keep it: a merge knows its siblings by it.
    config["upcycling"] = workspace.provenance["fingerprint"]
    files: dict[str, Any] = {checkpoint.in_trunk("config.json"): config}
    code = plan.target.code
    if code is not None:
        files[checkpoint.in_trunk(code.name)] = code.read_text(encoding="utf-8")
    build_result(workspace, tensors, template=checkpoint, key=plan.key, files=files)
    return tensors


def described(plan: Plan, tensors: Sequence[TensorSpec], router: str) -> dict[str, Any]:
    """Return what the artifact says of the result."""
    routing = plan.routing
    every, active = _parameters(tensors, routing)
    return {
        "from": plan.dense.kind,
        "format": plan.target.name,
        "loads_with": plan.target.loading or "transformers",
        "layers": list(routing.layers),
        "experts": routing.experts,
        "top_k": routing.top_k,
        "normalize_gates": routing.normalize_gates,
        "gate_scale": routing.gate_scale,
        "router": router,
        "noise": plan.beginning.noise,
        "parameters": {"all": every, "active": active},
    }


def summary(
    dense: DenseModel, target: RoutedTarget, routing: LayerRouting, tensors: Sequence[TensorSpec]
) -> list[str]:
    """Return lines on a result to come for the terminal."""
    every, active = _parameters(tensors, routing)
    before = sum(spec.elements for spec in dense.checkpoint.specs.values())
    needs = (
        f"needs trust_remote_code=True: {target.loading}" if target.loading else "transformers has"
    )
    return [
        f"{dense.kind} becomes {target.name}, which {needs}",
        f"layers {', '.join(map(str, routing.layers))}: {count_noun(routing.experts, 'expert')}, "
        f"{routing.top_k} a token",
        f"parameters {before:,} become {every:,}, {active:,} of them active for a token",
    ]


def _parameters(tensors: Sequence[TensorSpec], routing: LayerRouting) -> tuple[int, int]:
    """Return the number of all parameters, and of those that a token passes."""
    inside = sum(one.elements for one in tensors if _EXPERTS.search(one.name))
    every = sum(one.elements for one in tensors)
    return every, every - inside + inside * routing.top_k // routing.experts

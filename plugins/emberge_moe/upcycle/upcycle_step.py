"""The `upcycle` step: turn a dense model into a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from emberge import (
    Artifact,
    ModelRef,
    NumberRange,
    Preflight,
    Problem,
    Workspace,
)
from emberge.model_folder import Checkpoint

from emberge_moe.upcycle.dense_model import DenseModel
from emberge_moe.upcycle.plan import Plan
from emberge_moe.upcycle.routing_step import RoutingStep


@dataclass(frozen=True, kw_only=True)
class Upcycle(RoutingStep):
    """Make a mixture of experts from a dense model: copies of feed-forward blocks behind routers.

    This is sparse upcycling (Komatsuzaki et al., 2022, arXiv:2212.05055), for encoders as in Nomic Embed v2
    (Nussbaum and Duderstadt, 2025, arXiv:2502.07972): in each of `layers` a router sends every token to
    `top_k` of `experts` copies of the block. With `normalize_gates` the routed model computes the same as the
    dense model until it is trained. Without it, as in the paper, the output of a block is multiplied by the
    sum of the chosen gates, which is below 1. `mix_experts` takes the experts from several models.

    Qwen3, and Llama, Mistral and EuroBERT with all layers routed, become mixture-of-experts classes of
    transformers, if such a class does not change the model; then plain `AutoModel` loads the result. All
    other models become `emberge_routed`: the folder contains the one code file of this class, and other
    programs load it with `trust_remote_code=True`. `check` and the card state the class of the result.
    `export: nomic_v2` writes the format of Nomic Embed v2 from a rotary XLM-R (`jina_embeddings_v3`). This
    format cannot hold the biases inside experts; they are dropped only with `allow_bias_loss`.

    Example:
        routed:
          upcycle: {model: ./dense, layers: alternate, experts: 8, top_k: 2}
    """

    model: ModelRef
    """The dense model."""
    experts: Annotated[int, NumberRange(least=2, most=1024)] = 8
    """Number of copies of each block."""

    @property
    def expert_count(self) -> int:
        return self.experts

    def check(self, context: Preflight) -> Iterator[Problem]:
        folder = context.whole_model(self.model)
        yield from self.check_dense(folder, "model", context)

    def run(self, workspace: Workspace) -> Artifact:
        model = workspace.model(self.model)
        with workspace.whole_model(model) as folder:
            dense = DenseModel(Checkpoint(folder))
            routing, target = self.choose_routing(dense)
            plan = Plan(dense, [dense], routing, target, workspace.seed, [model.fingerprint])
            facts = self.build_routed(plan, workspace)
        return Artifact(
            kind="model",
            size=model.size,
            parents=(self.model.text,),
            details={"made_by": "upcycling", "upcycled": facts},
        )

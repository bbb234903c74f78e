"""The `upcycle` step: turn a dense model into a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from emberge import (
    Artifact,
    CheckpointError,
    ModelRef,
    NumberRange,
    Preflight,
    Problem,
    Workspace,
)
from emberge.model_folder import Checkpoint

from emberge_moe.upcycle.dense_model import DenseModel
from emberge_moe.upcycle.plan import InitialState, Plan
from emberge_moe.upcycle.probe import SENTENCES, largest_difference, last_states
from emberge_moe.upcycle.routing import router_deviation
from emberge_moe.upcycle.routing_step import RoutingStep

# A larger difference from the dense model, relative to the largest state, is no rounding.
_ROUNDING = 1e-4


@dataclass(frozen=True, kw_only=True)
class Upcycle(RoutingStep):
    """Make a mixture of experts from a dense model: copies of feed-forward blocks behind routers.

    This is sparse upcycling (Komatsuzaki et al., 2022, arXiv:2212.05055), for encoders as in Nomic Embed v2
    (Nussbaum and Duderstadt, 2025, arXiv:2502.07972): in each of `layers` a router sends every token to
    `top_k` of `experts` copies of the block. With `normalize_gates` the routed model computes the same as the
    dense model until it is trained. Without it, as in the paper, the output of a block is multiplied by the
    sum of the chosen gates, which is below 1. `mix_experts` takes the experts from several models.

    Qwen3, Llama, Mistral, EuroBERT and Granite become mixture-of-experts classes of transformers, if such a
    class does not change the model; then plain `AutoModel` loads the result. All other models become
    `emberge_routed`: the folder contains the one code file of this class, and other programs load it with
    `trust_remote_code=True`. `check` and the card state the class of the result. `export: nomic_v2` writes
    the format of Nomic Embed v2 from a rotary XLM-R (`jina_embeddings_v3`). This format cannot hold the
    biases inside experts; they are dropped only with `allow_bias_loss`.

    The result is compared with the dense model on a few fixed sentences. The largest difference of a hidden
    state, divided by the largest hidden state, is in the artifact and on the card.

    Example:
        routed:
          upcycle: {model: ./dense, layers: alternate, experts: 8, top_k: 2}
    """

    model: ModelRef
    """The dense model."""
    experts: Annotated[int, NumberRange(least=2, most=1024)] = 8
    """Number of copies of each block."""
    router: str = "normal(0.02)"
    """First weights of routers: normally distributed with a standard deviation, or `zeros`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        router_deviation(self.router)

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
            beginning = InitialState(router_deviation(self.router), workspace.seed)
            plan = Plan(dense, [dense], routing, target, beginning, [model.fingerprint])
            facts = self.build_routed(plan, self.router, workspace)
            if target.is_own_class:
                facts["step_0"] = self._compare(folder, workspace)
        return Artifact(
            kind="model",
            size=model.size,
            parents=(self.model.text,),
            details={"made_by": "upcycling", "upcycled": facts},
        )

    def _compare(self, dense: Path, workspace: Workspace) -> dict[str, Any]:
        """Return the largest difference between hidden states of the routed and of the dense model.

        Raises:
            CheckpointError: if the two models should be equal, but differ by more than rounding.
        """
        # One after the other, so that only one of them is in memory.
        first, second = (
            last_states(folder, self.backbone, SENTENCES, workspace)
            for folder in (dense, workspace.folder)
        )
        difference = largest_difference(first, second)
        if difference > _ROUNDING and self.normalize_gates:
            raise CheckpointError(
                f"the routed model's hidden states differ from the dense model's by {difference:.2g} of the "
                "largest, which is no rounding"
            )
        return {"difference": difference, "texts": len(SENTENCES)}

"""The backbone for models with routers, whose experts it keeps in use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from emberge import Backbone, CheckpointError, Encoder, EncoderFacts, NonNegative, component
from emberge.model_folder import read_object
from emberge_encoder import Layout


@dataclass(frozen=True, kw_only=True)
class Routed(Backbone):
    """An encoder with routers, and an extra loss that spreads tokens over the experts.

    The backbone adds `balance` times the load-balancing loss of the whole batch, without padding, to a
    training's loss: E · Σ r/k · p for each layer, averaged over layers (Switch Transformers, Fedus et al.,
    2021, arXiv:2101.03961; 1 at best). r is the load of an expert, p its mean probability, E the number of
    experts, and k the number that each token goes to. Nomic Embed v2 prints Σ r · p (Nussbaum and Duderstadt,
    2025, arXiv:2502.07972, eq. 1); its authors' code has the formula used here.

    Each logged point has the share of tokens of every expert (`load/<layer>/<expert>`), the entropy of these
    shares (`load_entropy/<layer>`, 1 if even), `dead_experts/<layer>`, and `gate_sum/<layer>`, the mean over
    tokens of the summed probability of a token's experts. The report shows the loads over the steps as a
    figure. A warning names a router that has collapsed.

    The backbone loads models of Qwen3-MoE and Mixtral, and models upcycled from other encoders. Losses over
    tokens, such as mlm, can train it too; the loss of routers is added to them as well.

    Example:
        model: ./upcycled
        backbone: {routed: {balance: 1.0, inner: {text_encoder: {max_length: 256}}}}
    """

    inner: Backbone = component("text_encoder")
    """Encoder of the model's folder."""
    balance: NonNegative = 1.0
    """Factor of the load-balancing loss; 0 trains without one."""

    @property
    def leaves_adapter(self) -> bool:
        return self.inner.leaves_adapter

    def describe(self, checkpoint: Path, *, predicts_tokens: bool = False) -> EncoderFacts:
        """Return the inner backbone's facts; report a model without routers, but not its training."""
        facts = self.inner.describe(checkpoint, predicts_tokens=predicts_tokens)
        if facts.problems:
            return facts
        try:
            self._find_router(checkpoint)
        except CheckpointError as error:
            return EncoderFacts(problems=(str(error),))
        return replace(facts, training_problems=())

    def _find_router(self, checkpoint: Path) -> str:
        """Return the path of the model's routers."""
        from emberge_moe.routed_encoder import ROUTERS

        path = Layout.read(checkpoint).trunk_folder / "config.json"
        config = read_object(path)
        model_type = str(config.get("model_type"))
        if model_type not in ROUTERS:
            raise CheckpointError(
                f"{path}: a model of type '{model_type}' has no known routers, as {', '.join(ROUTERS)} "
                "have; use its backbone without routed, or upcycle it first"
            )
        return ROUTERS[model_type]

    def load(
        self, checkpoint: Path, *, device: str, dtype: str, predicts_tokens: bool = False
    ) -> Encoder:
        from emberge_moe.routed_encoder import PredictingRoutedEncoder, RoutedEncoder, RouterTaps

        path = self._find_router(checkpoint)
        encoder = self.inner.load(
            checkpoint, device=device, dtype=dtype, predicts_tokens=predicts_tokens
        )
        encoder_class = PredictingRoutedEncoder if predicts_tokens else RoutedEncoder
        return encoder_class(encoder, RouterTaps(encoder.module, path), self.balance)

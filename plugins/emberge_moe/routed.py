"""The backbone for models with routers, whose experts it keeps in use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from emberge import (
    Backbone,
    CheckpointError,
    Encoder,
    EncoderFacts,
    MediaFacts,
    NonNegative,
    NumberRange,
    component,
)
from emberge.model_folder import Layout, read_object

_COMPILED = "routed listens to routers, which torch_compile makes impossible: leave that out"


@dataclass(frozen=True, kw_only=True)
class Routed(Backbone):
    """An encoder with routers, and an extra loss that spreads tokens over the experts.

    The backbone adds `balance` times the load-balancing loss of the whole batch, without padding, to a
    training's loss. r is the load of an expert, p its mean probability, E the number of experts, and k the
    number that each token goes to. `form: switch` is E · Σ r/k · p for each layer, averaged over layers
    (Switch Transformers, Fedus et al., 2021, arXiv:2101.03961; 1 at best). `paper` is Σ r · p as Nomic Embed
    v2 prints it (Nussbaum and Duderstadt, 2025, arXiv:2502.07972, eq. 1; its authors' code has `switch`).
    `hf` is the formula of transformers, over the tokens of all layers together. `z_loss` is the factor of a
    second loss, the mean squared log-sum-exp of logits (ST-MoE, Zoph et al., 2022, arXiv:2202.08906).
    `jitter` multiplies a router's input by random numbers from 1 - jitter to 1 + jitter in training, as
    Switch Transformers do; a training with `dropout: false` draws none.

    Each logged point has the share of tokens of every expert (`load/<layer>/<expert>`), the entropy of these
    shares (`load_entropy/<layer>`, 1 if even), `dead_experts/<layer>`, and `gate_sum/<layer>`, the mean over
    tokens of the summed probability of a token's experts. The report shows the loads over the steps as a
    figure. A warning names a router that has collapsed.

    The backbone loads models of Qwen3-MoE, Qwen2-MoE, Mixtral and Granite-MoE, and models upcycled from other
    encoders. Losses over tokens, such as mlm, can train it too; the losses of routers are added to them as
    well.

    Example:
        trained:
          train:
            model: ./upcycled
            data: ./pairs.jsonl
            loss: infonce
            sampler: {batch_shuffle: {batch_size: 64}}
            backbone: {routed: {balance: 1.0, inner: {text_encoder: {max_length: 256}}}}
    """

    inner: Backbone = component("text_encoder")
    """Encoder of the model's folder."""
    balance: NonNegative = 1.0
    """Factor of the load-balancing loss; 0 trains without one."""
    form: Literal["switch", "paper", "hf"] = "switch"
    """Formula of the load-balancing loss."""
    z_loss: NonNegative = 0.0
    """Factor of the loss that keeps logits small."""
    jitter: Annotated[float, NumberRange(least=0, below=1)] = 0.0
    """Largest relative change of a router's input in training."""

    def __post_init__(self) -> None:
        for name in ("balance", "z_loss"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name):g}")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"jitter is a share from 0 to below 1, not {self.jitter:g}")

    @property
    def leaves_adapter(self) -> bool:
        return self.inner.leaves_adapter

    def describe(self, checkpoint: Path, *, predicts: bool = False) -> EncoderFacts:
        """Return the inner backbone's facts; report a model without routers, but not its training."""
        facts = self.inner.describe(checkpoint, predicts=predicts)
        if facts.problems:
            return facts
        try:
            self._find_router(checkpoint)
        except CheckpointError as error:
            return EncoderFacts(problems=(str(error),))
        if getattr(self.inner, "torch_compile", False):
            return EncoderFacts(problems=(_COMPILED,))
        return replace(facts, training_problems=())

    def check_media(self, checkpoint: Path, media: MediaFacts) -> list[str]:
        return self.inner.check_media(checkpoint, media)

    def _find_router(self, checkpoint: Path) -> str:
        """Return the path of the model's routers.

        Raises:
            CheckpointError: if the model has no routers, or its config sets a jitter in addition to this
                backbone's.
        """
        from emberge_moe.routers import ROUTERS

        path = Layout.read(checkpoint).trunk_folder / "config.json"
        config = read_object(path)
        kind = str(config.get("model_type"))
        if kind not in ROUTERS:
            raise CheckpointError(
                f"{path}: a model of type '{kind}' has no routers that are known, as {', '.join(ROUTERS)} "
                "have; use its backbone without routed, or upcycle it first"
            )
        jitter = config.get("router_jitter") or config.get("router_jitter_noise")
        if jitter and self.jitter:
            raise CheckpointError(
                f"{path}: its routers have a jitter of {jitter:g} already; leave jitter out of routed"
            )
        return ROUTERS[kind]

    def load(self, checkpoint: Path, *, device: str, dtype: str, predicts: bool = False) -> Encoder:
        from emberge_moe.balance import RouterLosses
        from emberge_moe.routed_encoder import PredictingRoutedEncoder, RoutedEncoder
        from emberge_moe.routers import RouterTaps

        path = self._find_router(checkpoint)
        encoder = self.inner.load(checkpoint, device=device, dtype=dtype, predicts=predicts)
        losses = RouterLosses(self.balance, self.form, self.z_loss)
        kind = PredictingRoutedEncoder if predicts else RoutedEncoder
        return kind(encoder, RouterTaps(encoder.module, path, self.jitter), losses)

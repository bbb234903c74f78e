"""The `as_encoder` step: a causal language model with bidirectional attention and unchanged weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emberge import (
    Artifact,
    Backbone,
    CheckpointError,
    EmbergeError,
    ModelRef,
    Preflight,
    Problem,
    Step,
    WholeNumber,
    Workspace,
    component,
)
from emberge.model_folder import Checkpoint, ModuleFolder
from emberge_encoder import (
    Layout,
    build_config,
    is_causal,
    read_declared_attention,
    switch_attention,
)

from emberge_bidirlm.mask_token import MaskToken, find_mask_token

_POOLING = "mean"


@dataclass(frozen=True, kw_only=True)
class AsEncoder(Step):
    """Make a causal language model an encoder: bidirectional attention, pooling, a mask token, no training.

    The result is Bi+Base of BidirLM (arXiv:2604.02045), which is where masked adaptation and contrastive
    training start; an embedding is the mean of token states. Weights are copied, including the head that
    predicts tokens. The step writes config.json, the tokenizer and the modules of SentenceTransformers so
    that plain `AutoModel` and `SentenceTransformer` load an encoder. Then it loads the result and verifies
    that each layer reads later tokens.

    The step refuses encoder-decoders, models that are already bidirectional, and hybrid models, whose
    convolution or linear attention layers would remain causal.

    Example:
        encoder:
          as_encoder: {model: Qwen/Qwen3-0.6B-Base, mask_token: "<|repo_name|>"}
    """

    produces = "model"

    model: ModelRef
    """The causal model, plain or in a SentenceTransformers folder."""
    mask_token: str | WholeNumber | None = None
    """Existing token, or its id, to use as mask token; by default the tokenizer's mask token, if any."""
    backbone: Backbone = component("text_encoder")
    """Backbone that loads the result to verify its bidirectional attention."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        folder = context.whole_model(self.model)
        if folder is None:
            return
        checkpoint = Checkpoint(folder)
        try:
            build_encoder_config(checkpoint)
            build_encoder_layout(checkpoint)
        except EmbergeError as error:
            yield context.problem(str(error), "model")
            return
        try:
            mask = find_mask_token(checkpoint, self.mask_token)
        except EmbergeError as error:
            yield context.problem(str(error), "mask_token")
            return
        if mask is None:
            yield context.warning(
                "its tokenizer has no mask token, so no loss that hides tokens (mntp, mlm) can train the "
                "result; name a token that no text contains: as_encoder: {mask_token: …}",
                "model",
            )

    def run(self, workspace: Workspace) -> Artifact:
        model = workspace.model(self.model)
        with workspace.whole_model(model) as folder:
            checkpoint = Checkpoint(folder)
            mask = find_mask_token(checkpoint, self.mask_token)
            self._build(checkpoint, mask, model.fingerprint, workspace)
        device = workspace.machine.device
        self.backbone.load(workspace.folder, device=device, dtype="float32")
        details = {
            "attention": "bidirectional",
            "pooling": _POOLING,
            **({"mask_token": mask.token, "mask_id": mask.id} if mask is not None else {}),
        }
        return model.describe_change(self.model, "switching the attention of", details)

    def _build(
        self, checkpoint: Checkpoint, mask: MaskToken | None, content: str, workspace: Workspace
    ) -> None:
        from emberge.merging import build_result

        layout = build_encoder_layout(checkpoint)
        width = int(load_trunk_config(checkpoint).hidden_size)
        files: dict[str, Any] = {
            checkpoint.locate_in_trunk("config.json"): build_encoder_config(checkpoint)
        }
        if mask is not None:
            files |= mask.read_files(checkpoint)

        def write_modules(out: Path) -> None:
            layout.write(out, width)

        build_result(
            workspace,
            checkpoint.specs.values(),
            template=checkpoint,
            key=content,
            files=files,
            complete=write_modules,
        )


def build_encoder_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a causal model's config with bidirectional attention.

    Raises:
        CheckpointError: if the model is not a causal language model, or some of its layers would remain
            causal.
    """
    config = checkpoint.config
    try:
        changed = switch_attention(config, "bidirectional")
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.trunk / 'config.json'}: {error}") from error
    if read_declared_attention(config) == "as is" and not is_causal(config):
        raise CheckpointError(
            f"{checkpoint.folder}: '{config.get('model_type')}' is no causal language model, so there is no "
            "attention to switch; use it as it is"
        )
    return changed


def build_encoder_layout(checkpoint: Checkpoint) -> Layout:
    """Return a checkpoint's SentenceTransformers modules with mean pooling; other modules do not change.

    Raises:
        CheckpointError: if its modules do not turn a transformer's states into an embedding.
    """
    layout = Layout.read(checkpoint.folder)
    modules = layout.modules
    if layout.bare:
        modules = (ModuleFolder("Pooling", "1_Pooling"), ModuleFolder("Normalize", "2_Normalize"))
    return replace(layout, modules=modules, pooling=(_POOLING,))


def load_trunk_config(checkpoint: Checkpoint) -> Any:
    """Return transformers' config object of a checkpoint's text model.

    Raises:
        CheckpointError: if the model needs remote code, or transformers refuses a value.
    """
    return build_config(checkpoint.trunk, checkpoint.config).get_text_config()

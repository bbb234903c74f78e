"""The `as_encoder` step: a causal language model with bidirectional attention and unchanged weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    suggest,
)
from emberge.model_folder import Checkpoint, ModuleFolder, read_object
from emberge_encoder import (
    Layout,
    build_config,
    is_causal,
    load_tokenizer,
    read_declared_attention,
    switch_attention,
)

_POOLING = "mean"
# Files of tokenizers that name special tokens.
_TOKEN_FILES = ("tokenizer_config.json", "special_tokens_map.json")


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


# The mask token: a token that no text contains, written into the tokenizer.


@dataclass(frozen=True, slots=True)
class MaskToken:
    """A token of a checkpoint's tokenizer that masks other tokens, with its id."""

    token: str
    id: int

    def read_files(self, checkpoint: Checkpoint) -> Mapping[str, Mapping[str, Any]]:
        """Return the tokenizer's files that name the mask token, by path in the checkpoint."""
        contents = {}
        for name in _TOKEN_FILES:
            path = checkpoint.trunk / name
            if path.is_file() or name == _TOKEN_FILES[0]:
                content = read_object(path) if path.is_file() else {}
                contents[checkpoint.locate_in_trunk(name)] = {**content, "mask_token": self.token}
        return contents


def find_mask_token(checkpoint: Checkpoint, requested: str | int | None) -> MaskToken | None:
    """Return a checkpoint's mask token: the `requested` token or id, or else the tokenizer's own.

    Raises:
        CheckpointError: if the tokenizer lacks the token, or the embeddings have no row for it.
    """
    tokenizer = load_tokenizer(checkpoint.trunk)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    token = tokenizer.mask_token if requested is None else requested
    if token is None:
        return None
    mask_token = _find_token(checkpoint.folder, token, vocabulary)
    rows = int(load_trunk_config(checkpoint).vocab_size)
    if mask_token.id >= rows:
        raise CheckpointError(
            f"{checkpoint.folder}: the mask token '{mask_token.token}' has the id {mask_token.id}, and the "
            f"model has embeddings of {rows} tokens only; name one of those as mask_token"
        )
    return mask_token


def _find_token(folder: Path, text_or_id: str | int, vocabulary: Mapping[str, int]) -> MaskToken:
    if isinstance(text_or_id, str):
        if text_or_id in vocabulary:
            return MaskToken(text_or_id, vocabulary[text_or_id])
        raise CheckpointError(
            f"{folder}: its tokenizer has no token '{text_or_id}'{suggest(text_or_id, list(vocabulary))}; "
            "name an existing token as mask_token, or its id"
        )
    token = next((token for token, id_ in vocabulary.items() if id_ == text_or_id), None)
    if token is None:
        raise CheckpointError(
            f"{folder}: its tokenizer has no token with the id {text_or_id}; the highest is "
            f"{max(vocabulary.values())}; name an existing token as mask_token, or its id"
        )
    return MaskToken(token, text_or_id)


def load_trunk_config(checkpoint: Checkpoint) -> Any:
    """Return transformers' config object of a checkpoint's text model.

    Raises:
        CheckpointError: if the model needs remote code, or transformers refuses a value.
    """
    return build_config(checkpoint.trunk, checkpoint.config).get_text_config()

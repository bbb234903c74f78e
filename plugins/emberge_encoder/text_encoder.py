"""The backbone for any transformer that reads text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from emberge import CheckpointError, Encoder, EncoderFacts
from emberge.contracts import PredictionFacts
from emberge.model_folder import Checkpoint, TrunkConfig, read_object, read_settings

from emberge_encoder.layout import Layout
from emberge_encoder.layout_options import LayoutOptions, refuse_blind_pooling
from emberge_encoder.media.media_support import MediaSupport, read_media_support, refuse_other_media
from emberge_encoder.static_folder import (
    is_static_model,
    read_static_dimension,
    refuse_broken_static,
)
from emberge_encoder.stock.cross_encoder import CrossEncoderFacts
from emberge_encoder.text.attention_config import (
    Attention,
    is_causal,
    read_declared_attention,
    switch_attention,
)
from emberge_encoder.text.lora import Lora
from emberge_encoder.text.tokenizer import load_tokenizer, read_chat_format
from emberge_encoder.text.trunk_weights import refuse_foreign_classes

if TYPE_CHECKING:
    from emberge_encoder.text.text_model import ModelParts, TextModel

# Problems of attention by whether a loss over tokens is causal.
_MESSAGE_BY_CAUSAL_LOSS = {
    False: (
        "its attention is causal, so a hidden token would be predicted from those before it alone; set "
        "backbone: {text_encoder: {attention: bidirectional}}, or predict the next token with loss: causal_lm"
    ),
    True: (
        "its attention is bidirectional, so each token would see the next one, which it shall predict; set "
        "backbone: {text_encoder: {attention: causal}} if it is a causal model, or hide tokens with loss: "
        "mntp or mlm"
    ),
}
_NO_MASK_MESSAGE = (
    "its tokenizer has no mask token; name a token that no text contains in the step that made the encoder: "
    "as_encoder: {mask_token: …}"
)
_LORA_MESSAGE = "lora trains no head that predicts tokens; leave it out for losses over tokens"


@dataclass(frozen=True, kw_only=True)
class TextEncoder(LayoutOptions):
    """A transformers model with pooling, as SentenceTransformers understands it.

    A folder with modules.json is used as that file says; an option given here overrides it. Each loaded model
    is tested for the required attention. Mean pooling over causal attention is refused, unless `attention:
    causal` asks for it. Saved models load without remote code. Padding comes after a text, whatever the
    tokenizer's side.

    A folder that begins with a StaticEmbedding is a static model: a text's embedding is the mean of its
    tokens' vectors in float32 (the step `static_model`; model2vec). Of the options it takes `prompts` and
    `max_length`, and no `dense`.

    A folder that lists image or audio in its `modality_config` also reads images or audio, through the native
    classes of Qwen3-VL, Qwen3-ASR and Qwen3-Omni's thinker. Every input is then a message of its chat
    template.

    Example:
        backbone: {text_encoder: {pooling: mean, max_length: 256, lora: {rank: 16, fold: true}}}
    """

    attention: Attention = "as is"
    """Switch causal models to bidirectional attention and back (BidirLM, arXiv:2604.02045); hybrids with
    convolutions or linear attention cannot be switched, and are refused."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Dtype of the weights."""
    lora: Lora | None = None
    """Train an adapter on frozen weights."""
    gradient_checkpointing: bool = False
    """Keep only each block's input and compute other activations again: a fifth to a third slower."""
    fresh_head: bool = False
    """Begin with a new head for losses over tokens, which train the checkpoint's own by default; needed if
    the checkpoint has none, except where the head only shares the embeddings."""
    freeze: tuple[str, ...] = ()
    """Parts of the transformer that get no gradient and are saved as they are: `[visual, audio_tower]`. A
    head that predicts tokens is no part."""
    resample: bool = False
    """Convert clips of another sampling rate, which are otherwise errors."""
    shrink: bool = False
    """Shrink images larger than the model's limit, which are otherwise errors."""

    @property
    def leaves_adapter(self) -> bool:
        return self.lora is not None and not self.lora.fold

    def describe(self, checkpoint: Path, *, predicts_tokens: bool = False) -> EncoderFacts:
        try:
            if is_static_model(checkpoint):
                return self._describe_static(checkpoint)
            layout, config = self._resolve_layout(checkpoint)
            if not Checkpoint(layout.folder).has_tokenizer:
                raise CheckpointError(f"{layout.folder}: has no tokenizer; get its files")
            return self._describe_loadable(layout, config, predicts_tokens)
        except CheckpointError as error:
            return EncoderFacts(problems=(str(error),))

    def _describe_static(self, checkpoint: Path) -> EncoderFacts:
        """Return the facts of a static model, which has tokens' vectors and no transformer."""
        self._refuse_static(checkpoint)
        return EncoderFacts(
            dimension=read_static_dimension(checkpoint),
            causal=False,
            prediction=PredictionFacts(
                problems=(f"{checkpoint}: a static model predicts no tokens",)
            ),
        )

    def _refuse_static(self, checkpoint: Path) -> None:
        """Refuse a static model that is broken, or lacks what an option asks for."""
        refuse_broken_static(checkpoint)
        allowed = {"prompts", "max_length", *(["dtype"] if self.dtype == "float32" else [])}
        for option in dataclasses.fields(self):
            value = getattr(self, option.name)
            if option.name not in allowed and value not in (option.default, None):
                raise CheckpointError(
                    f"{checkpoint}: is a static model, which has float32 vectors and no {option.name}; "
                    "take the option out"
                )

    def _load_static(self, checkpoint: Path, device: str) -> Encoder:
        from emberge_encoder.static_model import StaticEncoder

        self._refuse_static(checkpoint)
        prompts = {**(read_settings(checkpoint).get("prompts") or {}), **self.prompts}
        model = StaticEncoder(checkpoint, prompts, self.max_length)
        model.module.to(device)
        return model

    def _describe_loadable(
        self, layout: Layout, config: Mapping[str, Any], predicts_tokens: bool
    ) -> EncoderFacts:
        """Return the facts of an encoder that can be loaded."""
        support = read_media_support(layout, config)
        return EncoderFacts(
            training_problems=_list_router_problems(layout, config),
            changes=self._list_changes(layout.folder),
            warnings=_warn_of_cross_encoder(layout.folder),
            dimension=_find_embedding_size(
                layout, _read_size(layout, config, "hidden_size"), self.dense
            ),
            causal=is_causal(config),
            media=() if support is None else support.kinds,
            prediction=(
                self._describe_prediction(layout, config, _read_size(layout, config, "vocab_size"))
                if predicts_tokens
                else None
            ),
        )

    def _describe_prediction(
        self, layout: Layout, config: Mapping[str, Any], vocabulary: int
    ) -> PredictionFacts:
        """Return problems of head, attention and tokens for token losses."""
        from emberge_encoder.text.token_head import find_mask_id

        if self.lora is not None:
            return PredictionFacts(problems=(_LORA_MESSAGE,))
        no_mask = []
        if find_mask_id(layout.folder, load_tokenizer(layout.trunk_folder), vocabulary) is None:
            no_mask = [f"{layout.folder}: {_NO_MASK_MESSAGE}"]
        causal = is_causal(config)
        attention = f"{layout.trunk_folder}: {_MESSAGE_BY_CAUSAL_LOSS[not causal]}"
        return PredictionFacts(
            hidden=(attention, *no_mask) if causal else tuple(no_mask),
            causal=() if causal else (attention,),
        )

    def _list_changes(self, checkpoint: Path) -> tuple[str, ...]:
        """Return attention and pooling if they differ from the checkpoint's."""
        layout = Layout.read(checkpoint)
        causal = is_causal(read_object(layout.trunk_folder / "config.json"))
        checkpoint_values = {
            "attention": "causal" if causal else "bidirectional",
            "pooling": " and ".join(layout.pooling),
        }
        options = {"attention": self.attention, "pooling": self.pooling}
        return tuple(
            f"{name}: {value}; the model's own is {checkpoint_values[name]}"
            for name, value in options.items()
            if checkpoint_values[name] and value not in (checkpoint_values[name], "as is", None)
        )

    def load(
        self, checkpoint: Path, *, device: str, dtype: str, predicts_tokens: bool = False
    ) -> Encoder:
        from emberge_encoder.text.text_model import ModelParts
        from emberge_encoder.text.trunk_weights import freeze

        if is_static_model(checkpoint):
            return self._load_static(checkpoint, device)
        layout, config = self._resolve_layout(checkpoint)
        trunk, language_model = self._load_weights(
            checkpoint, layout, config, dtype, predicts_tokens
        )
        trunk.to(device)
        self._require_attention(layout, config, trunk)
        adapter = self.lora.insert_into(trunk, checkpoint) if self.lora is not None else None
        tokenizer = load_tokenizer(layout.trunk_folder, lower_case=layout.lower_case)
        if self.gradient_checkpointing:
            _recompute_activations(trunk, checkpoint)
        freeze(trunk, self.freeze, checkpoint, has_head=language_model is not None)
        parts = ModelParts(
            layout=layout,
            config=config,
            trunk=trunk,
            tokenizer=tokenizer,
            adapter=adapter,
            chat=read_chat_format(layout, config),
            frozen=self.freeze,
            dense=self.dense,
        )
        model = self._build_model(parts, language_model, read_media_support(layout, config))
        model.module.to(device)
        return model

    def _build_model(
        self, parts: ModelParts, language_model: Any, support: MediaSupport | None
    ) -> TextModel:
        """Return the encoder of loaded parts, which predicts tokens or reads media if it can."""
        from emberge_encoder.text.text_model import TextModel

        if language_model is not None:
            from emberge_encoder.text.token_head import PredictingModel

            return PredictingModel(parts, language_model=language_model)
        if support is not None:
            from emberge_encoder.media.media_features import build_media_readers
            from emberge_encoder.media.media_model import MediaModel

            readers = build_media_readers(support, resample=self.resample, shrink=self.shrink)
            return MediaModel(parts, support=support, readers=readers)
        return TextModel(parts)

    def _load_weights(
        self,
        checkpoint: Path,
        layout: Layout,
        config: Mapping[str, Any],
        dtype: str,
        predicts_tokens: bool,
    ) -> tuple[Any, Any]:
        """Return the transformer, and its language model with `predicts_tokens`, else None."""
        from emberge_encoder.text.trunk_weights import load_trunk

        kind = self.dtype or dtype
        if not predicts_tokens:
            return load_trunk(layout.trunk_folder, config, kind), None
        from emberge_encoder.text.token_head import load_language_model

        if self.lora is not None:
            raise CheckpointError(f"{checkpoint}: {_LORA_MESSAGE}")
        language_model = load_language_model(
            layout.trunk_folder, config, kind, fresh_head=self.fresh_head
        )
        return language_model.base_model, language_model

    def _resolve_layout(self, checkpoint: Path) -> tuple[Layout, dict[str, Any]]:
        """Return the checkpoint's layout with the options applied, and its trunk's config."""
        facts = CrossEncoderFacts.read(checkpoint)
        # A bare cross-encoder is an encoder of texts for whoever names its pooling.
        if facts.is_one and (self.pooling is None or Checkpoint(checkpoint).modules):
            raise CheckpointError(f"{checkpoint}: is {facts.noun}; {facts.remedy}")
        layout = Layout.read(checkpoint)
        path = layout.trunk_folder / "config.json"
        if not path.is_file():
            raise CheckpointError(f"{path}: is missing")
        config = read_object(path)
        refuse_foreign_classes(path, config)
        if not layout.bare:
            support = read_media_support(layout, config)
            refuse_other_media(layout, support.kinds if support is not None else ())
        try:
            config = switch_attention(config, self.attention)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from error
        self._require_own_layout(layout)
        return self.change_layout(layout, config), config

    def _require_own_layout(self, layout: Layout) -> None:
        """Refuse options that change more than weights, as an adapter cannot store such changes."""
        if not self.leaves_adapter:
            return
        options = [option.name for option in dataclasses.fields(LayoutOptions)]
        changed = [
            name
            for name in (*options, "attention")
            if getattr(self, name) not in (None, {}, "as is")
        ]
        if layout.bare:
            changed = ["pooling"]
        if changed:
            raise CheckpointError(
                f"{layout.folder}: an adapter has weights alone, so its {changed[0]} would be lost; "
                "set lora: {fold: true} to save a whole model"
            )

    def _require_attention(self, layout: Layout, config: Mapping[str, Any], trunk: Any) -> None:
        """Refuse a model that does not attend as the option, config.json or its pooling requires."""
        from emberge_encoder.text.blocks import reads_later_tokens

        later = reads_later_tokens(trunk, trunk.config.get_text_config().vocab_size)
        attention = read_declared_attention(config) if self.attention == "as is" else self.attention
        if attention == "as is":
            if not later:
                refuse_blind_pooling(layout, config)
        elif later != (attention == "bidirectional"):
            fix = (
                "take is_causal and use_bidirectional_attention out of its config.json"
                if self.attention == "as is"
                else "it cannot be switched"
            )
            raise CheckpointError(
                f"{layout.folder}: {type(trunk).__name__} ignores attention: {attention}; {fix}"
            )


def _warn_of_cross_encoder(checkpoint: Path) -> tuple[str, ...]:
    """Return the warning of a cross-encoder that is read as an encoder of texts."""
    facts = CrossEncoderFacts.read(checkpoint)
    warning = f"{checkpoint}: is {facts.noun}, and is read as an embedder; {facts.remedy}"
    return (warning,) if facts.is_one else ()


def _find_embedding_size(layout: Layout, hidden_size: int, dense: int | None) -> int:
    """Return the embedding's dimension: the last Dense's, or the hidden size times the pooling modes.

    `dense` is the size that a Dense without a config yet gives.
    """
    size = hidden_size
    for entry in layout.modules:
        if entry.kind == "Pooling":
            size *= max(1, len(layout.pooling))
        elif entry.kind == "Dense":
            path = layout.folder / entry.path / "config.json"
            size = int(read_object(path)["out_features"]) if path.is_file() else dense or size
    return size


def _read_size(layout: Layout, config: Mapping[str, Any], key: str) -> int:
    """Return a size of the transformer, from its class if the config has it under another name."""
    size = TrunkConfig(config).stated.get(key)
    if isinstance(size, int):
        return size
    from emberge_encoder.text.trunk_weights import build_config

    return int(getattr(build_config(layout.trunk_folder, config).get_text_config(), key))


def _list_router_problems(layout: Layout, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the problem of training a model with expert routers without load balancing."""
    experts = TrunkConfig(config).expert_count
    if experts < 2:
        return ()
    return (
        f"{layout.trunk_folder / 'config.json'}: the model has routers with {experts} experts each, and "
        "trained without a balance they soon use few of them; write backbone: {routed: {inner: "
        "{text_encoder: …}}}, with balance: 0 beside inner to do without",
    )


def _recompute_activations(trunk: Any, checkpoint: Path) -> None:
    """Make a transformer compute its activations again in the backward pass (gradient checkpointing).

    Raises:
        CheckpointError: if its class cannot do so.
    """
    # Earlier releases have the old name alone, and later ones warn of it.
    original_enable = trunk.gradient_checkpointing_enable
    enable = getattr(trunk, "activation_checkpointing_enable", original_enable)
    try:
        enable({"use_reentrant": False})
    except ValueError as error:
        raise CheckpointError(
            f"{checkpoint}: {type(trunk).__name__} has no gradient_checkpointing"
        ) from error

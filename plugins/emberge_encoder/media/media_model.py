"""An encoder of text, images and clips: a native class of transformers with towers beside its text stack."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from emberge import MediaKind, TokenisedText
from emberge.contracts import has_media
from torch import Tensor

from emberge_encoder.media.features import ClipReader, ImageReader, RecentFeatures, pad_whole_chunks
from emberge_encoder.media.media_support import MediaSupport
from emberge_encoder.media.rendering import Rendering
from emberge_encoder.text_model import TextModel


class MediaModel(TextModel):
    """An encoder of text and of media within it (see `Encoder`); `support` has the media that it reads."""

    def __init__(
        self,
        *args: Any,
        support: MediaSupport,
        readers: Mapping[MediaKind, ImageReader | ClipReader],
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        assert self._chat is not None  # a folder that lists media has messages
        self._support = support
        self._readers = readers
        self._rendering = Rendering(support, self._tokenizer, self._chat, readers)
        self._recent = RecentFeatures()
        if support.family == "qwen3_omni_moe_thinker" and "audio" in support.kinds:
            tower: Any = self._chain.trunk.audio_tower
            tower.register_forward_pre_hook(pad_whole_chunks, with_kwargs=True)

    @property
    def tokenizer_fingerprint(self) -> str:
        settings = repr((self._support.family, sorted(self._support.processors.items())))
        return hashlib.sha256(f"{super().tokenizer_fingerprint}{settings}".encode()).hexdigest()

    def tokenise(
        self, texts: Sequence[str], *, prompt: str, max_length: int | None
    ) -> list[TokenisedText]:
        limit = max_length or self.layout.max_length
        mixed = [has_media(text) for text in texts]
        plain = [text for text, has in zip(texts, mixed, strict=True) if not has]
        other = [text for text, has in zip(texts, mixed, strict=True) if has]
        of_plain = iter(super().tokenise(plain, prompt=prompt, max_length=max_length))
        of_other = iter(self._rendering.tokenise(other, prompt, limit) if other else ())
        return [next(of_other if has else of_plain) for has in mixed]

    def collate(self, texts: Sequence[TokenisedText]) -> Mapping[str, Tensor]:
        features = dict(super().collate(texts))
        media = [part for text in texts for part in text.media]
        if not media:
            return features
        ids = features["input_ids"]
        features.setdefault("attention_mask", torch.ones_like(ids))
        for kind, reader in self._readers.items():
            media_features = [
                self._recent.get(part, reader.read) for part in media if part.kind == kind
            ]
            if media_features:
                joined = reader.join(media_features)
                features |= {name: torch.from_numpy(value) for name, value in joined.items()}
        if self._support.family == "qwen3_vl":
            features["mm_token_type_ids"] = (ids == self._support.token_id("image")).long()
        return features

    def _select_inputs(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        inputs = {name: value for name, value in features.items() if name != "prompt_length"}
        if "input_features" in inputs:
            tower: Any = self._chain.trunk.audio_tower
            dtype = next(tower.parameters()).dtype
            inputs["input_features"] = inputs["input_features"].to(dtype)
        return inputs

"""Encoder of text, images and clips: a native class of transformers with towers and a text stack."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from emberge import DataError, Media, MediaKind, TokenisedText, show_media, split_parts
from emberge.contracts import has_media
from torch import Tensor

from emberge_encoder.media.media_features import ClipReader, ImageReader, pad_whole_chunks
from emberge_encoder.media.media_support import MediaSupport
from emberge_encoder.text.text_model import ModelParts, TextModel
from emberge_encoder.text.tokenizer import ChatFormat

_KEPT_FEATURES = 32
# Tokens around a medium, which are never cut off.
_MARK_KEYS = (
    "vision_start_token_id",
    "vision_end_token_id",
    "audio_start_token_id",
    "audio_end_token_id",
)


class MessageTokeniser:
    """Tokeniser of texts with media, which formats them as messages as sentence-transformers does.

    The parts of an input become the parts of one message. The placeholder that the template prints for an
    image or clip is repeated once for each of its tokens.
    """

    def __init__(
        self,
        support: MediaSupport,
        tokenizer: Any,
        chat: ChatFormat,
        readers: Mapping[MediaKind, ImageReader | ClipReader],
    ) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._readers = readers
        self._kind_by_token = {
            tokenizer.convert_ids_to_tokens(support.find_token_id(kind)): kind
            for kind in support.kinds
        }
        self._placeholder = re.compile("|".join(map(re.escape, self._kind_by_token)))
        ids = [
            *(support.find_token_id(kind) for kind in support.kinds),
            *(support.config.get(name) for name in _MARK_KEYS),
        ]
        self._media_ids = frozenset(id_ for id_ in ids if id_ is not None)

    def tokenise(self, texts: Sequence[str], prompt: str, limit: int | None) -> list[TokenisedText]:
        """Return the token ids of texts with media, truncated to `limit` by dropping text at the end.

        Raises:
            DataError: if the model does not read the media, or they are longer than the limit.
        """
        parts = [split_parts(text) for text in texts]
        messages = [
            [
                {"type": "text", "text": p} if isinstance(p, str) else {"type": p.kind}
                for p in pieces
            ]
            for pieces in parts
        ]
        full_ids = [
            self._expand_placeholders(rendered, pieces, text)
            for rendered, pieces, text in zip(
                self._chat.render(messages, prompt),
                parts,
                texts,
                strict=True,
            )
        ]
        rows = self._tokenizer(full_ids, add_special_tokens=False)["input_ids"]
        return [
            TokenisedText(
                self._cut_text(ids, limit, text),
                media=tuple(part for part in pieces if isinstance(part, Media)),
            )
            for ids, pieces, text in zip(rows, parts, texts, strict=True)
        ]

    def _expand_placeholders(self, rendered: str, parts: Sequence[str | Media], text: str) -> str:
        """Return the rendered text with a medium's placeholder repeated once for each of its tokens.

        Raises:
            DataError: if the model does not read the media, or a text itself contains a placeholder.
        """
        media = [part for part in parts if isinstance(part, Media)]
        for part in media:
            if part.kind not in self._readers:
                raise DataError(
                    f"{part.path}: the model reads {' and '.join(self._readers)}, and no {part.kind}"
                )
        placeholder_kinds = [
            self._kind_by_token[token] for token in self._placeholder.findall(rendered)
        ]
        if placeholder_kinds != [part.kind for part in media]:
            raise DataError(
                f"{show_media(text)[:200]!r}: the chat template makes {len(placeholder_kinds)} placeholders "
                f"of {len(media)} media; a text must not contain {' or '.join(self._kind_by_token)}"
            )
        remaining = iter(media)

        def repeat(placeholder: re.Match[str]) -> str:
            part = next(remaining)
            return placeholder[0] * self._readers[part.kind].count_media_tokens(part)

        return self._placeholder.sub(repeat, rendered)

    def _cut_text(self, ids: list[int], limit: int | None, text: str) -> list[int]:
        """Return at most `limit` ids, cut at the last text tokens; media tokens are never dropped."""
        excess = len(ids) - limit if limit is not None else 0
        if excess <= 0:
            return ids
        words = [place for place, id_ in enumerate(ids) if id_ not in self._media_ids]
        if len(words) < excess:
            raise DataError(
                f"{show_media(text)[:200]!r}: its media take {len(ids) - len(words)} tokens, and max_length "
                f"is {limit}; raise max_length, or make them smaller"
            )
        dropped = frozenset(words[len(words) - excess :])
        return [id_ for place, id_ in enumerate(ids) if place not in dropped]


class MediaModel(TextModel):
    """An encoder of texts with media (see `Encoder`); `support` describes the media that it reads."""

    def __init__(
        self,
        parts: ModelParts,
        *,
        support: MediaSupport,
        readers: Mapping[MediaKind, ImageReader | ClipReader],
    ) -> None:
        super().__init__(parts)
        assert self._chat is not None  # a folder that lists media has messages
        self._support = support
        self._readers = readers
        self._message_tokeniser = MessageTokeniser(support, self._tokenizer, self._chat, readers)
        # The features of the last images and clips, for the second pass over a batch.
        self._read = {k: lru_cache(_KEPT_FEATURES)(reader.read) for k, reader in readers.items()}
        if support.family == "qwen3_omni_moe_thinker" and "audio" in support.kinds:
            tower: Any = self._modules.trunk.audio_tower
            tower.register_forward_pre_hook(pad_whole_chunks, with_kwargs=True)

    @property
    def tokenizer_fingerprint(self) -> str:
        settings = repr((self._support.family, sorted(self._support.processors.items())))
        return hashlib.sha256(f"{super().tokenizer_fingerprint}{settings}".encode()).hexdigest()

    def tokenise(
        self, texts: Sequence[str], *, prompt: str, max_length: int | None, queries: bool = False
    ) -> list[TokenisedText]:
        limit = max_length or self.layout.max_length
        plain_texts = [text for text in texts if not has_media(text)]
        mixed_texts = [text for text in texts if has_media(text)]
        plain_tokens = iter(super().tokenise(plain_texts, prompt=prompt, max_length=max_length))
        mixed_tokens = iter(
            self._message_tokeniser.tokenise(mixed_texts, prompt, limit) if mixed_texts else ()
        )
        return [next(mixed_tokens if has_media(text) else plain_tokens) for text in texts]

    def collate(self, texts: Sequence[TokenisedText]) -> Mapping[str, Tensor]:
        features = dict(super().collate(texts))
        media = [part for text in texts for part in text.media]
        if not media:
            return features
        ids = features["input_ids"]
        features.setdefault("attention_mask", torch.ones_like(ids))
        for kind, reader in self._readers.items():
            media_features = [self._read[kind](part) for part in media if part.kind == kind]
            if media_features:
                joined = reader.join(media_features)
                features |= {name: torch.from_numpy(value) for name, value in joined.items()}
        if self._support.family == "qwen3_vl":
            features["mm_token_type_ids"] = (ids == self._support.find_token_id("image")).long()
        return features

    def _select_inputs(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        inputs = {name: value for name, value in features.items() if name != "prompt_length"}
        if "input_features" in inputs:
            tower: Any = self._modules.trunk.audio_tower
            dtype = next(tower.parameters()).dtype
            inputs["input_features"] = inputs["input_features"].to(dtype)
        return inputs

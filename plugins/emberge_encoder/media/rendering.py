"""Texts with media as token ids: through the chat template, with a token for each vector of a medium."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from emberge import DataError, Media, MediaKind, TokenisedText, readable, split_parts

from emberge_encoder.chat_format import ChatFormat
from emberge_encoder.media.features import Clips, Images
from emberge_encoder.media.media_way import MediaWay

__all__ = ["Rendering"]

# What surrounds a medium; it is never cut off.
_MARKS = (
    "vision_start_token_id",
    "vision_end_token_id",
    "audio_start_token_id",
    "audio_end_token_id",
)


class Rendering:
    """Way of a text with media to token ids, as sentence-transformers takes it for messages.

    The parts of an input are those of one message; the placeholder that the template prints for a medium is
    repeated once for each of its vectors.
    """

    def __init__(
        self,
        way: MediaWay,
        tokenizer: Any,
        chat: ChatFormat,
        readers: Mapping[MediaKind, Images | Clips],
    ) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._readers = readers
        self._token = {kind: tokenizer.convert_ids_to_tokens(way.id_of(kind)) for kind in way.kinds}
        self._kind = {token: kind for kind, token in self._token.items()}
        self._place = re.compile("|".join(map(re.escape, self._kind)))
        ids = [*(way.id_of(kind) for kind in way.kinds), *(way.config.get(name) for name in _MARKS)]
        self._kept = frozenset(one for one in ids if one is not None)

    def tokenise(self, texts: Sequence[str], prompt: str, limit: int | None) -> list[TokenisedText]:
        """Return the token ids of texts that have media, cut to `limit` by taking text from their ends.

        Raises:
            DataError: for media that the model does not read, or that are longer than the limit.
        """
        parts = [split_parts(text) for text in texts]
        whole = [
            self._expanded(shown, own, text)
            for shown, own, text in zip(
                self._chat.rendered([_contents(own) for own in parts], prompt),
                parts,
                texts,
                strict=True,
            )
        ]
        rows = self._tokenizer(whole, add_special_tokens=False)["input_ids"]
        return [
            TokenisedText(
                self._cut(ids, limit, text),
                media=tuple(part for part in own if isinstance(part, Media)),
            )
            for ids, own, text in zip(rows, parts, texts, strict=True)
        ]

    def _expanded(self, shown: str, parts: Sequence[str | Media], text: str) -> str:
        media = [part for part in parts if isinstance(part, Media)]
        for part in media:
            if part.kind not in self._readers:
                raise DataError(
                    f"{part.path}: the model reads {' and '.join(self._readers)}, and no {part.kind}"
                )
        places = [self._kind[token] for token in self._place.findall(shown)]
        if places != [part.kind for part in media]:
            raise DataError(
                f"{readable(text)[:200]!r}: the chat template makes {len(places)} placeholders of "
                f"{len(media)} media; a text must not contain {' or '.join(self._kind)}"
            )
        left = iter(media)

        def repeated(found: re.Match[str]) -> str:
            part = next(left)
            return found[0] * self._readers[part.kind].count(part)

        return self._place.sub(repeated, shown)

    def _cut(self, ids: list[int], limit: int | None, text: str) -> list[int]:
        """Return the ids without the last ones that are text, as many as are too many."""
        over = len(ids) - limit if limit is not None else 0
        if over <= 0:
            return ids
        words = [place for place, one in enumerate(ids) if one not in self._kept]
        if len(words) < over:
            raise DataError(
                f"{readable(text)[:200]!r}: its media take {len(ids) - len(words)} tokens, and max_length is "
                f"{limit}; raise max_length, or make them smaller"
            )
        gone = frozenset(words[len(words) - over :])
        return [one for place, one in enumerate(ids) if place not in gone]


def _contents(parts: Sequence[str | Media]) -> list[dict[str, str]]:
    """Return the parts of an input as those of a message."""
    return [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": part.kind}
        for part in parts
    ]

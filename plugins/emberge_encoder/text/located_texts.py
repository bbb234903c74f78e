"""Tokens of texts and pairs, with the characters that each token came from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from emberge import CheckpointError, Encoder, TokenisedText

# Separator of the texts of a pair, for tokenizers that put none between them.
_BREAK = "\n"


@dataclass(frozen=True, slots=True)
class LocatedText:
    """Token ids of a text, a pair, or a window of a pair, with the characters that each token came from.

    `row` is the position of the text in the call's list. `text_numbers` [t] is 0 for a token of the first
    text, 1 for a token of the second text, and -1 for special tokens. `start` and `end` [t] are positions of
    characters in the text of that number.
    """

    row: int
    tokens: TokenisedText
    text_numbers: Sequence[int]
    start: Sequence[int]
    end: Sequence[int]


@runtime_checkable
class LocatingEncoder(Encoder, Protocol):
    """Encoder that reports which characters of a text each token came from."""

    def locate(
        self,
        texts: Sequence[str],
        seconds: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        stride: int | None = None,
    ) -> list[LocatedText]:
        """Return the tokens of each text, or pair with a text of `seconds`, truncated to `max_length`.

        With a `stride`, a long second text is cut into several windows. Neighbouring windows share `stride`
        tokens, at most a quarter of a window, and the first text is cut to half of a window.

        Raises:
            CheckpointError: if the tokenizer does not report the character positions of its tokens.
        """


def locate_texts(
    tokenizer: Any,
    texts: Sequence[str],
    seconds: Sequence[str] | None,
    limit: int | None,
    stride: int | None,
    *,
    types: bool,
) -> list[LocatedText]:
    """Return the tokens of texts or pairs, with their character positions; see `LocatingEncoder.locate`.

    `types` asks for the tokens' types, for a model that embeds them.

    Raises:
        CheckpointError: if the tokenizer does not report character positions.
    """
    if not tokenizer.is_fast:
        raise CheckpointError(
            f"{tokenizer.name_or_path}: {type(tokenizer).__name__} does not know which characters a token "
            "came from; save the model with a fast tokenizer (tokenizer.json)"
        )
    if not texts:
        return []
    if stride is not None and limit is not None:
        stride = min(stride, limit // 4)
        texts = [_cut_text(tokenizer, text, limit // 2) for text in texts]
    separator = _BREAK if seconds is not None and not _has_separator(tokenizer) else ""
    encoded = tokenizer(
        list(texts),
        None if seconds is None else [separator + text for text in seconds],
        truncation=False if limit is None else "longest_first" if stride is None else "only_second",
        max_length=limit,
        padding=False,
        return_token_type_ids=types,
        return_offsets_mapping=True,
        **({} if stride is None else {"return_overflowing_tokens": True, "stride": stride}),
    )
    return list(_locate_rows(encoded, len(separator)))


def _locate_rows(encoded: Any, separator: int) -> Iterator[LocatedText]:
    """Yield the texts of an encoding; `separator` characters stand before each second text."""
    rows = encoded.get("overflow_to_sample_mapping", range(len(encoded["input_ids"])))
    types = encoded.get("token_type_ids")
    for number, row in enumerate(rows):
        ids, spans = encoded["input_ids"][number], encoded["offset_mapping"][number]
        numbers = [-1 if text is None else text for text in encoded.sequence_ids(number)]
        shift = [separator if text == 1 else 0 for text in numbers]
        end = [last - by for (_, last), by in zip(spans, shift, strict=True)]
        # A token of the separator alone is no token of the text.
        numbers = [text if last > 0 else -1 for text, last in zip(numbers, end, strict=True)]
        start = [max(0, first - by) for (first, _), by in zip(spans, shift, strict=True)]
        token_types = types[number] if types is not None and any(types[number]) else None
        yield LocatedText(row, TokenisedText(ids, types=token_types), numbers, start, end)


def _cut_text(tokenizer: Any, text: str, limit: int) -> str:
    """Return a text cut to `limit` tokens, to leave room for a second text."""
    if len(text) <= limit:
        return text
    spans = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return text if len(spans) <= limit else text[: spans[limit - 1][1]]


def _has_separator(tokenizer: Any) -> bool:
    """Return whether the tokenizer puts a special token between the texts of a pair."""
    sequences = tokenizer("a", "a").sequence_ids(0)
    last_place = max(place for place, sequence in enumerate(sequences) if sequence == 0)
    return bool(sequences[last_place + 1] is None)

"""Tokenizers of model folders, and the format of their chat templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emberge import CheckpointError
from emberge.model_folder import Checkpoint, TrunkConfig, read_trunk_settings

from emberge_encoder.layout import Layout

# Texts whose last tokens differ, so that the tokens at the end of both conversations are the template's.
_FILLERS = ("0", "1 2 3 4")


# Tokens that a tokenizer inserts into every sequence.
_INSERTED_TOKENS = ("bos_token", "cls_token", "sep_token", "eos_token", "pad_token", "unk_token")


def load_tokenizer(folder: Path, *, lower_case: bool = False) -> Any:
    """Return transformers' tokenizer of a model's or a transformer's folder, without code of the folder.

    With `lower_case` it first lowercases texts.

    Raises:
        CheckpointError: if the folder has no loadable tokenizer, or the tokenizer has no vocabulary or has
            more tokens than the model's embedding has rows.
    """
    from transformers import AutoTokenizer

    trunk = Checkpoint(folder).trunk
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(trunk), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # each class of tokenizers fails in its own way
        line = next(iter(str(error).strip().splitlines()), repr(error))
        raise CheckpointError(f"{trunk}: has no tokenizer to load: {line}") from error
    require_vocabulary(tokenizer, trunk)
    if lower_case:
        from tokenizers import normalizers

        backend = tokenizer.backend_tokenizer
        before = [backend.normalizer] if backend.normalizer is not None else []
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *before])
    return tokenizer


def require_vocabulary(tokenizer: Any, folder: Path) -> None:
    """Require that a tokenizer loaded from `folder` has tokens, and the model an embedding row for each.

    Raises:
        CheckpointError: if it has no tokens, or the model lacks rows.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    added = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    words = [number for token, number in vocabulary.items() if token not in added]
    if not words:
        raise CheckpointError(
            f"{folder}: has no tokenizer, as its files hold no words (transformers makes one of "
            f"{len(vocabulary)} special tokens); get the tokenizer's files"
        )
    rows = TrunkConfig(Checkpoint(folder).config).stated.get("vocab_size")
    special_ids = [getattr(tokenizer, f"{name}_id") for name in _INSERTED_TOKENS]
    largest = max([*words, *(number for number in special_ids if isinstance(number, int))])
    if isinstance(rows, int) and largest >= rows:
        raise CheckpointError(
            f"{folder}: its tokenizer has tokens up to id {largest:,}, and the model has {rows:,} rows of "
            "embeddings; get the tokenizer of this model"
        )


def count_prompt_tokens(
    tokenizer: Any, encoded: Any, texts: Sequence[str], prompt: str
) -> list[int]:
    """Return the number of each text's leading tokens that belong to its prompt.

    These are the special tokens at the beginning and the tokens that end inside the prompt, by character
    offsets; a token across the end of the prompt belongs to the text (CoDiEmb, arXiv:2508.11442). For
    tokenizers without offsets, the tokens of the prompt alone are counted, as sentence-transformers does.
    """
    if not prompt:
        return [0] * len(texts)
    if encoded.encodings is None:
        (prompt_ids,) = tokenizer([prompt])["input_ids"]
        length = len(prompt_ids) - (
            bool(prompt_ids) and prompt_ids[-1] in tokenizer.all_special_ids
        )
        return [min(length, len(ids)) for ids in encoded["input_ids"]]
    return [
        _count_leading_tokens(encoding, text, len(prompt))
        for encoding, text in zip(encoded.encodings, texts, strict=True)
    ]


def _count_leading_tokens(encoding: Any, text: str, characters: int) -> int:
    """Return the number of tokens that a text's first `characters` take."""
    tokens = (encoding.char_to_token(character) for character in range(characters, len(text)))
    first = next((token for token in tokens if token is not None), None)
    if first is not None:
        return int(first)
    # The text is empty or cut off, and a special token at the end does not belong to the prompt.
    return int(len(encoding.ids) - sum(encoding.special_tokens_mask[-1:]))


def read_chat_format(layout: Layout, config: Mapping[str, Any]) -> ChatFormat | None:
    """Return the format of a folder whose texts are messages; None for one of plain texts."""
    settings = {} if layout.bare else read_trunk_settings(layout.trunk_folder)
    message = (settings.get("modality_config") or {}).get("message")
    if message is None:
        return None
    return ChatFormat(
        layout,
        load_tokenizer(layout.trunk_folder, lower_case=layout.lower_case),
        model_type=str(config.get("model_type")),
        content=message.get("format", "auto"),
        options=(settings.get("processing_kwargs") or {}).get("chat_template") or {},
    )


class ChatFormat:
    """Format of a text as a conversation: its prompt is the system's message, the text the user's.

    The tokenizer's own chat template is used, as in sentence-transformers. `content` is the form in which the
    template reads a message: `flat`, `structured`, or `auto`, which means that the template is examined.
    `options` are passed to the template. The tokens at the end of every conversation are also put after a
    truncated conversation, unless the option `restore_suffix` is off.
    """

    def __init__(
        self,
        layout: Layout,
        tokenizer: Any,
        *,
        model_type: str,
        content: Any,
        options: Mapping[str, Any],
    ) -> None:
        from sentence_transformers.base.modality import InputFormatter

        self._layout = layout
        self._tokenizer = tokenizer
        self._formatter = InputFormatter(model_type, content, tokenizer)
        self._options = {name: v for name, v in options.items() if name != "restore_suffix"}
        self._restores = bool(options.get("restore_suffix", True))
        self._suffixes: dict[str, list[int]] = {}

    @property
    def key(self) -> str:
        """Key that two formats share if they turn every text into the same conversation."""
        form = (self._formatter.message_format, self._options, self._restores)
        return repr((self._tokenizer.chat_template, *form))

    def tokenise(self, texts: Sequence[str], prompt: str, limit: int | None) -> list[list[int]]:
        """Return the token ids of each text's conversation, cut to `limit`.

        Raises:
            CheckpointError: if the template does not accept the prompt.
        """
        cut = {"truncation": limit is not None, "max_length": limit}
        rows: list[list[int]] = self._format_texts(texts, prompt, **cut)["input_ids"]
        if limit is not None and self._restores:
            for row in rows:
                # A row of that length may have been cut.
                end = self._find_suffix(prompt)[-len(row) :] if len(row) >= limit else []
                row[len(row) - len(end) :] = end
        return rows

    def render(self, contents: Sequence[Sequence[Mapping[str, str]]], prompt: str) -> list[str]:
        """Return the conversation of each input as text; its parts are those of the user's message.

        Raises:
            CheckpointError: if the template does not accept them.
        """
        messages = [[{"role": "user", "content": list(content)}] for content in contents]
        rendered: list[str] = self._apply_template(messages, prompt, tokenize=False)
        return rendered

    def _find_suffix(self, prompt: str) -> list[int]:
        """Return the tokens that the template puts after every text."""
        if prompt not in self._suffixes:
            first, second = self._format_texts(_FILLERS, prompt)["input_ids"]
            shorter = min(len(first), len(second))
            count = next((i for i in range(shorter) if first[-1 - i] != second[-1 - i]), 0)
            self._suffixes[prompt] = first[len(first) - count :]
        return self._suffixes[prompt]

    def _format_texts(self, texts: Sequence[str], prompt: str, **options: Any) -> Any:
        """Return the conversations of texts as the tokenizer returns them."""
        messages = [self._formatter.to_message({"text": text}) for text in texts]
        return self._apply_template(messages, prompt, **options)

    def _apply_template(
        self, messages: Sequence[Sequence[Mapping[str, Any]]], prompt: str, **options: Any
    ) -> Any:
        """Return conversations of messages, with the prompt before them, as the tokenizer returns them.

        Raises:
            CheckpointError: if the template does not accept them.
        """
        if prompt:
            messages = self._formatter.prepend_prompt_to_messages(messages, prompt)
        try:
            return self._tokenizer.apply_chat_template(messages, **options | self._options)
        except Exception as error:  # a template may fail in any way
            message_noun = (
                f"the prompt {prompt!r} as the system's message" if prompt else "an input alone"
            )
            raise CheckpointError(
                f"{self._layout.trunk_folder}: its chat template does not take {message_noun}: {error}"
            ) from error

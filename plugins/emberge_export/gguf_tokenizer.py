"""The tokenizer of a GGUF file, from a fast tokenizer of transformers: WordPiece, Unigram or BPE."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from emberge import CheckpointError
from gguf import GGUFWriter, TokenType

# A pattern that splits a text into words for byte-level BPE, and llama.cpp's names of it by its digits.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NAME_BY_PATTERN = {
    _WORDS.replace("DIGITS", r"\p{N}"): "qwen2",
    _WORDS.replace("DIGITS", r"\p{N}{1,3}"): "llama-bpe",
}
_WORD_START = "\u2581"


class TokenizerWriter:
    """A writer of a tokenizer's keys; `rows` is the number of rows of the model's token embeddings.

    With `lower_case` the model's settings put texts into lower case before the tokenizer.
    """

    def __init__(self, writer: GGUFWriter, tokenizer: Any, rows: int, lower_case: bool) -> None:
        self._writer = writer
        self._tokenizer = tokenizer
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        self._model = content["model"]
        self._normalizers = _map_by_type(content["normalizer"], "normalizers")
        self._words = _map_by_type(content["pre_tokenizer"], "pretokenizers")
        self._lower_case = lower_case
        # Rows without a token get one that no text has.
        self._tokens = [f"[PAD{row}]" for row in range(rows)]
        self._types = [TokenType.UNUSED] * rows

    def write(self) -> None:
        """Write all keys of the tokenizer.

        Raises:
            CheckpointError: if llama.cpp has no such tokenizer; the message names what it lacks.
        """
        self._fill_tokens()
        if self._lower_case and self._model["type"] != "WordPiece":
            raise CheckpointError("llama.cpp has do_lower_case for WordPiece alone")
        if self._model["type"] == "WordPiece":
            self._write_word_piece()
        elif self._model["type"] == "Unigram":
            self._write_unigram()
        elif self._model["type"] == "BPE":
            self._write_bpe()
        else:
            raise CheckpointError(f"llama.cpp has no tokenizer of type {self._model['type']}")
        self._writer.add_token_list(self._tokens)
        self._writer.add_token_types(self._types)
        self._write_special_tokens()

    def _fill_tokens(self) -> None:
        special = set(self._tokenizer.all_special_ids)
        added = self._tokenizer.added_tokens_decoder
        for token, number in self._tokenizer.get_vocab().items():
            self._tokens[number] = token
            if number in special or (number in added and added[number].special):
                self._types[number] = TokenType.CONTROL
            else:
                self._types[number] = (
                    TokenType.USER_DEFINED if number in added else TokenType.NORMAL
                )

    def _name_algorithm(self, model: str, words: str) -> None:
        self._writer.add_tokenizer_model(model)
        self._writer.add_tokenizer_pre(words)

    def _write_word_piece(self) -> None:
        prefix = self._model["continuing_subword_prefix"]
        if self._normalizers.keys() != {"BertNormalizer"} or self._words.keys() != {
            "BertPreTokenizer"
        }:
            raise CheckpointError("llama.cpp has WordPiece with BERT's normalizer and words alone")
        options = self._normalizers["BertNormalizer"]
        lower_case = self._lower_case or options["lowercase"]
        strips = lower_case if options["strip_accents"] is None else options["strip_accents"]
        self._name_algorithm("bert", "default")
        self._writer.add_bool("tokenizer.ggml.normalizer.lowercase", lower_case)
        self._writer.add_bool("tokenizer.ggml.normalizer.strip_accents", strips)
        for number, token in enumerate(self._tokens):
            if self._types[number] in (TokenType.NORMAL, TokenType.USER_DEFINED):
                is_start = not token.startswith(prefix)
                self._tokens[number] = _WORD_START + token if is_start else token[len(prefix) :]

    def _write_unigram(self) -> None:
        if "Metaspace" not in self._words:
            raise CheckpointError("llama.cpp has Unigram with the words of sentencepiece alone")
        self._name_algorithm("t5", "default")
        scores = [score for _, score in self._model["vocab"]]
        self._writer.add_token_scores(scores + [0.0] * (len(self._tokens) - len(scores)))
        self._types[self._model["unk_id"]] = TokenType.UNKNOWN
        self._writer.add_add_space_prefix(self._words["Metaspace"]["prepend_scheme"] != "never")
        removes_spaces = {
            "Replace",
            "Strip",
        } & self._normalizers.keys() or "WhitespaceSplit" in self._words
        self._writer.add_remove_extra_whitespaces(bool(removes_spaces))
        if "Precompiled" in self._normalizers:
            text = self._normalizers["Precompiled"]["precompiled_charsmap"]
            self._writer.add_precompiled_charsmap(base64.b64decode(text))

    def _write_bpe(self) -> None:
        pairs = self._model["merges"]
        self._writer.add_token_merges([p if isinstance(p, str) else " ".join(p) for p in pairs])
        if self._normalizers.keys() == {"Replace"}:  # of a space by the sign of sentencepiece
            self._name_algorithm("gemma4", "gemma4")
            return
        if "ByteLevel" not in self._words:
            raise CheckpointError(
                "llama.cpp has BPE of bytes (ByteLevel) and of sentencepiece alone"
            )
        pattern = self._words.get("Split", {}).get("pattern", {}).get("Regex")
        name = "gpt-2" if self._words["ByteLevel"]["use_regex"] else _NAME_BY_PATTERN.get(pattern)
        if name is None:
            raise CheckpointError(f"llama.cpp has no name for the tokenizer's pattern {pattern!r}")
        self._name_algorithm("gpt2", name)

    def _write_special_tokens(self) -> None:
        text = self._tokenizer("a", add_special_tokens=False)["input_ids"]
        whole = self._tokenizer("a")["input_ids"]
        start = whole.index(text[0])
        before, after = whole[:start], whole[start + len(text) :]
        if len(before) > 1 or len(after) > 1:
            raise CheckpointError(
                "llama.cpp adds one token before a text and one after it, this tokenizer "
                f"{len(before)} and {len(after)}"
            )
        self._writer.add_add_bos_token(bool(before))
        self._writer.add_add_eos_token(bool(after))
        number_by_key = {
            "bos": before[0] if before else None,
            "eos": after[0] if after else None,
            "sep": after[0] if after else None,
            "unk": self._tokenizer.unk_token_id,
            "pad": self._tokenizer.pad_token_id,
            "mask": self._tokenizer.mask_token_id,
        }
        for key, number in number_by_key.items():
            if number is not None:
                getattr(self._writer, f"add_{key}_token_id")(number)


def _map_by_type(part: Mapping[str, Any] | None, key: str) -> dict[str, Mapping[str, Any]]:
    """Return a component of tokenizer.json, or those of its sequence, by their types."""
    parts = [] if part is None else part[key] if part["type"] == "Sequence" else [part]
    return {one["type"]: one for one in parts}

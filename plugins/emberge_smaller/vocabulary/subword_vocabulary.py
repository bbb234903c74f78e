"""The vocabulary of a tokenizer.json whose algorithm can be cut: WordPiece, Unigram or BPE."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from emberge import CheckpointError
from emberge.model_folder import Checkpoint, TokenizerFiles, read_text
from emberge.wording import join_some

ALGORITHMS = ("WordPiece", "Unigram", "BPE")
"""Algorithms, as tokenizer.json names them, whose vocabularies can be cut."""
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_INCOMPLETE_CHARACTER = "\ufffd"


class MergeTable:
    """The merges of a BPE tokenizer, which build tokens from characters."""

    def __init__(self, merges: Sequence[tuple[str, str]]) -> None:
        # Of a merge that is listed twice, the last rank counts, as in the tokenizers library.
        self._ranks: Mapping[tuple[str, str], int] = {pair: i for i, pair in enumerate(merges)}

    def find_merges(self, token: str) -> Sequence[tuple[str, str]]:
        """Return the merges that build a token from its characters, in order; none if they do not."""
        pieces, applied = list(token), []
        while len(pieces) > 1:
            pairs = list(itertools.pairwise(pieces))
            index = min(
                range(len(pairs)), key=lambda i: self._ranks.get(pairs[i], len(self._ranks))
            )
            if pairs[index] not in self._ranks:
                return ()
            applied.append(pairs[index])
            pieces[index : index + 2] = ["".join(pairs[index])]
        return applied

    def list_merges(self, tokens: Iterable[str]) -> frozenset[tuple[str, str]]:
        """Return all merges that build these tokens."""
        return frozenset(pair for token in tokens for pair in self.find_merges(token))

    def list_parts(self, tokens: Iterable[str]) -> frozenset[str]:
        """Return all tokens on the way from characters to these tokens."""
        merges = self.list_merges(tokens)
        return frozenset(part for pair in merges for part in (*pair, "".join(pair)))


@dataclass(frozen=True, eq=False)
class SubwordVocabulary:
    """The tokens of a tokenizer.json with their ids, and the parts that the algorithm needs.

    `ids` are the ids of all tokens as the tokenizers library numbers them, added tokens included.
    """

    path: Path
    content: Mapping[str, Any]
    ids: Mapping[str, int]

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> SubwordVocabulary:
        """Read the vocabulary of a model's tokenizer.

        Raises:
            CheckpointError: if the model has no tokenizer.json, or one of a kind that cannot be cut, which
                the message names.
        """
        files = TokenizerFiles(checkpoint.tokenizer_folder)
        path = files.json_path
        if not path.is_file():
            raise CheckpointError(
                f"{checkpoint.folder}: has no tokenizer.json, the file of a vocabulary that can be cut; "
                "write it with AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
        content = files.read_json()
        _require_cuttable(path, content["model"])
        return cls(path, content, number_tokens(read_text(path), str(path)))

    @property
    def model(self) -> Mapping[str, Any]:
        """The algorithm's part of tokenizer.json."""
        model: Mapping[str, Any] = self.content["model"]
        return model

    @property
    def algorithm(self) -> str:
        """The algorithm: WordPiece, Unigram or BPE."""
        return str(self.model["type"])

    @cached_property
    def texts(self) -> Mapping[int, str]:
        """The tokens by id."""
        return {number: token for token, number in self.ids.items()}

    @cached_property
    def size(self) -> int:
        """The largest id plus one."""
        return max(self.texts, default=-1) + 1

    @cached_property
    def base(self) -> Mapping[int, str]:
        """The tokens of the algorithm by id, without those that are only added."""
        vocabulary = self.model["vocab"]
        if isinstance(vocabulary, Mapping):
            return {number: token for token, number in vocabulary.items()}
        return {number: piece for number, (piece, _) in enumerate(vocabulary)}

    @cached_property
    def added(self) -> Mapping[int, str]:
        """The added tokens by id: the special ones, and those found before the algorithm sees a text."""
        contents = [str(entry["content"]) for entry in self.content["added_tokens"]]
        return {self.ids[token]: token for token in contents if token in self.ids}

    @cached_property
    def is_byte_level(self) -> bool:
        """True if each token is a sequence of bytes, each written as one of 256 characters."""
        parts = (self.content.get("pre_tokenizer"), self.content.get("decoder"))
        return any(kind == "ByteLevel" for part in parts for kind in _list_types(part))

    @cached_property
    def merges(self) -> Sequence[tuple[str, str]]:
        """The merges of BPE, in their order."""
        return [TokenizerFiles.split_merge(merge) for merge in self.model.get("merges") or ()]

    @cached_property
    def merge_table(self) -> MergeTable:
        """The merges of BPE by the tokens that they build."""
        return MergeTable(self.merges)

    @cached_property
    def scores(self) -> Sequence[tuple[str, str]]:
        """The pieces of Unigram with their scores as the file writes them.

        The tokenizers library reads a number of many digits with an error of up to one unit in its last
        place, which depends on the digits: only the same text gives the same score.
        """
        content = json.loads(read_text(self.path), parse_float=str, parse_int=str)
        return [(str(piece), str(score)) for piece, score in content["model"]["vocab"]]

    @cached_property
    def unknown_ids(self) -> frozenset[int]:
        """The ids of tokens that stand for text outside the vocabulary.

        They are the unknown token, and the tokens of bytes that are no whole characters: byte-level BPE and
        byte fallback spell unknown text with them.
        """
        from tokenizers import decoders

        spell = decoders.ByteLevel()
        ids = set() if self.unknown_token is None else {self.unknown_token}
        for number, token in self.base.items():
            if self.is_byte_level:
                is_unknown = _INCOMPLETE_CHARACTER in spell.decode([token])
            else:
                is_unknown = bool(_BYTE.fullmatch(token))
            if is_unknown and number not in self.added:
                ids.add(number)
        return frozenset(ids)

    @property
    def unknown_token(self) -> int | None:
        """The id of the token for unknown text; None without one."""
        if self.algorithm == "Unigram":
            number = self.model.get("unk_id")
            return number if isinstance(number, int) else None
        token = self.model.get("unk_token")
        return self.ids.get(token) if isinstance(token, str) else None

    def list_characters(self) -> Iterator[tuple[int, str | None]]:
        """Yield (id, character) for each token of one character; the character of a byte is None."""
        prefix = str(self.model.get("continuing_subword_prefix") or "")
        for number, token in self.base.items():
            inner = token.removeprefix(prefix) if self.algorithm == "WordPiece" else token
            if _BYTE.fullmatch(token):
                yield number, None
            elif len(inner or token) == 1:
                yield number, None if self.is_byte_level else inner or token


def number_tokens(text: str, label: str) -> dict[str, int]:
    """Return the ids of all tokens of a tokenizer.json, as the tokenizers library numbers them.

    `text` is the file's content, and `label` names the file in messages.

    Raises:
        CheckpointError: if the library refuses it.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(f"{label}: is no tokenizer: {error}; get it again") from error
    ids: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    return ids


def _require_cuttable(path: Path, model: Mapping[str, Any]) -> None:
    """Require a tokenizer whose vocabulary can be cut."""
    algorithm = model["type"]
    if algorithm not in ALGORITHMS:
        raise CheckpointError(
            f"{path}: its kind is {algorithm}, which cannot be cut; take a model whose tokenizer is "
            f"{join_some(ALGORITHMS)}"
        )
    marks = (
        ("continuing_subword_prefix", "end_of_word_suffix", "dropout") if algorithm == "BPE" else ()
    )
    stated = [f"{mark} '{model[mark]}'" for mark in marks if model.get(mark)]
    if stated:
        raise CheckpointError(
            f"{path}: its kind is BPE with {join_some(stated)}, which cannot be cut; take a model whose "
            "tokenizer is byte-level BPE"
        )


def _list_types(content: Any) -> Iterator[str]:
    """Yield the type of a part of tokenizer.json, and of all parts in it."""
    if isinstance(content, Mapping):
        yield str(content.get("type"))
        for value in content.values():
            yield from _list_types(value)
    elif isinstance(content, list):
        for value in content:
            yield from _list_types(value)

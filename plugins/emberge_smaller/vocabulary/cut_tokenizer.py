"""A tokenizer cut to some of its tokens, and the ids of tokens in configs, which change with it."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from emberge import CheckpointError
from emberge.model_folder import TokenizerFiles, read_object

from emberge_smaller.vocabulary.subword_vocabulary import SubwordVocabulary, number_tokens

_ID_KEY = re.compile(r"token_(id|ids|index)$|^(suppress|begin_suppress)_tokens$|^bad_words_ids$")
_TEXT_KEY = re.compile(r"_tokens?(_id|_decoder)?$")
_SIZE, _MULTIPLE = "vocab_size", "pad_vocab_size_multiple"
# Function from a token's id to its new id, or to None if the token is not kept.
IdChange = Callable[[int], int | None]

_VOCABULARY_MARK = "\x00vocabulary\x00"
# Other files that have the vocabulary, or a part of it.
_FILES = ("vocab.txt", "vocab.json", "merges.txt", "added_tokens.json", "tokenizer.json")


@dataclass(frozen=True, eq=False)
class CutTokenizer:
    """A tokenizer that has only the tokens `kept` of another one, numbered in the same order.

    The algorithm's tokens come first and tokens that are only added after them, as the tokenizers library
    numbers them.
    """

    vocabulary: SubwordVocabulary
    kept: Sequence[int]

    @cached_property
    def rows(self) -> array[int]:
        """The old id of each token, by its new id."""
        base = self.vocabulary.base
        return array("q", sorted(self.kept, key=lambda number: (number not in base, number)))

    @cached_property
    def new_ids(self) -> Mapping[int, int]:
        """The new id of each kept token, by its old id."""
        return {old: new for new, old in enumerate(self.rows)}

    @cached_property
    def base_ids(self) -> Mapping[str, int]:
        """The new ids of the algorithm's own tokens."""
        base = self.vocabulary.base
        return {base[old]: new for new, old in enumerate(self.rows) if old in base}

    @cached_property
    def merges(self) -> Sequence[tuple[str, str]]:
        """The merges of BPE that build the kept tokens, in their order."""
        merges = self.vocabulary.merge_table.list_merges(self.base_ids)
        return [pair for pair in self.vocabulary.merges if pair in merges]

    @cached_property
    def json_text(self) -> str:
        """The content of tokenizer.json.

        Raises:
            CheckpointError: if the tokenizers library refuses it or numbers the tokens in another way.
        """
        old = self.vocabulary.content
        model = {**old["model"], **self._cut_model()}
        content = {
            **_renumber_processing(old, self.new_ids),
            "model": model,
            "added_tokens": [
                {**entry, "id": self.new_ids[self.vocabulary.ids[entry["content"]]]}
                for entry in old["added_tokens"]
            ],
        }
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        if self.vocabulary.algorithm == "Unigram":
            text = text.replace(json.dumps(_VOCABULARY_MARK), self._format_scores(), 1)
        self._require_ids(text)
        return text

    def _cut_model(self) -> dict[str, Any]:
        """Return the changed parts of the algorithm."""
        if self.vocabulary.algorithm == "Unigram":
            unknown = self.vocabulary.unknown_token
            return {
                "vocab": _VOCABULARY_MARK,
                "unk_id": None if unknown is None else self.new_ids[unknown],
            }
        if self.vocabulary.algorithm == "WordPiece":
            return {"vocab": dict(self.base_ids)}
        listed = self.vocabulary.model.get("merges") or [[]]
        as_text = isinstance(listed[0], str)
        merges = [" ".join(pair) if as_text else list(pair) for pair in self.merges]
        return {"vocab": dict(self.base_ids), "merges": merges}

    def _format_scores(self) -> str:
        """Return the pieces of Unigram as JSON, each score with the digits that it had."""
        scores, base = self.vocabulary.scores, self.vocabulary.base
        entries = (
            f"      [{json.dumps(scores[old][0], ensure_ascii=False)}, {scores[old][1]}]"
            for old in self.rows
            if old in base
        )
        return "[\n" + ",\n".join(entries) + "\n    ]"

    def _require_ids(self, text: str) -> None:
        ids = number_tokens(text, f"{self.vocabulary.path}, cut to {len(self.rows):,} tokens")
        expected_ids = {self.vocabulary.texts[old]: new for new, old in enumerate(self.rows)}
        if ids != expected_ids:
            raise CheckpointError(
                f"{self.vocabulary.path}: its tokens cannot be renumbered, as {len(ids):,} would be left of "
                f"{len(expected_ids):,}, or others; write the tokenizer again with transformers"
            )

    def build_files(self) -> dict[str, Mapping[str, Any] | str]:
        """Return the content of each tokenizer file that changes, by its name."""
        folder = self.vocabulary.path.parent
        files: dict[str, Mapping[str, Any] | str] = {"tokenizer.json": self.json_text}
        if (folder / "tokenizer_config.json").is_file():
            files["tokenizer_config.json"] = self._renumber_config(
                read_object(folder / "tokenizer_config.json")
            )
        return files

    def _renumber_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return tokenizer_config.json, in which some releases list added tokens by their ids."""
        changed: dict[str, Any] = renumber_ids(config, self.new_ids.get)
        listed = config.get("added_tokens_decoder")
        if isinstance(listed, Mapping):
            changed["added_tokens_decoder"] = {
                str(self.new_ids[int(old)]): entry
                for old, entry in listed.items()
                if int(old) in self.new_ids
            }
        return changed

    def find_stale(self, folders: Sequence[Path]) -> list[Path]:
        """Return files of these folders that have the old vocabulary, and that tokenizer.json replaces."""
        stale: list[Path] = []
        for folder in folders:
            stale += TokenizerFiles(folder).list_other_formats()
            files = (folder / name for name in _FILES)
            stale += [path for path in files if path.is_file() and path != self.vocabulary.path]
        return stale


def _renumber_processing(content: Mapping[str, Any], new_ids: Mapping[int, int]) -> dict[str, Any]:
    """Return tokenizer.json with the new ids of padding and of the tokens around a text."""
    changed = dict(content)
    padding = content.get("padding")
    if isinstance(padding, Mapping) and isinstance(padding.get("pad_id"), int):
        changed["padding"] = {**padding, "pad_id": new_ids.get(padding["pad_id"], 0)}
    if content.get("post_processor") is not None:
        changed["post_processor"] = _change_processor(
            content["post_processor"], new_ids.__getitem__
        )
    return changed


def _change_processor(processor: Any, change: IdChange) -> Any:
    """Return a post-processor, or a part of one, with the new ids of its tokens."""
    if isinstance(processor, list):
        is_pair = (
            len(processor) == 2 and isinstance(processor[0], str) and isinstance(processor[1], int)
        )
        if is_pair:  # as in BertProcessing and RobertaProcessing
            return [processor[0], change(processor[1])]
        return [_change_processor(value, change) for value in processor]
    if not isinstance(processor, Mapping):
        return processor
    return {
        key: [change(number) for number in value]
        if key == "ids" and isinstance(value, list)
        else _change_processor(value, change)
        for key, value in processor.items()
    }


def list_processor_ids(content: Mapping[str, Any]) -> set[int]:
    """Return the token ids in the post-processor of a tokenizer.json."""
    named: set[int] = set()
    # Only the calls with each id count; the changed copy is dropped.
    _change_processor(content.get("post_processor"), named.add)
    return named


def list_named_ids(config: Any) -> set[int]:
    """Return the token ids in a config: those of its special tokens, and of images and clips."""
    named: set[int] = set()
    # Only the calls with each id count; the changed copy is dropped.
    renumber_ids(config, named.add)
    return named


def list_named_texts(config: Any) -> Iterator[str]:
    """Yield the texts of the tokens in a config, which it has as text or as the content of an object."""
    if isinstance(config, list):
        for value in config:
            yield from list_named_texts(value)
    for key, value in config.items() if isinstance(config, Mapping) else ():
        if _TEXT_KEY.search(key):
            yield from _list_texts(value)
        yield from list_named_texts(value)


def _list_texts(value: Any) -> Iterator[str]:
    """Yield the text of a token, or those of several in a list or by id or name."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping) and "content" in value:
        yield from _list_texts(value["content"])
    elif isinstance(value, list | Mapping):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _list_texts(inner)


def renumber_ids(config: Any, change: IdChange, size: tuple[int, int] | None = None) -> Any:
    """Return a config with the new ids of its tokens, and null in place of an id that no token has.

    `change` maps an id to the new one, or to None. Lists lose ids without one, and a list of words the words
    that have such an id. `size` is the number of tokens before and after; the config's `vocab_size` changes
    with it, and is no longer rounded up.
    """
    if isinstance(config, list):
        return [renumber_ids(value, change, size) for value in config]
    if not isinstance(config, Mapping):
        return config
    changed: dict[str, Any] = {}
    for key, value in config.items():
        if _ID_KEY.search(key):
            changed[key] = _change_numbers(value, change)
        elif size is not None and key == _SIZE and value == size[0]:
            changed[key] = size[1]
        elif size is not None and key == _MULTIPLE and isinstance(value, int):
            changed[key] = 1
        else:
            changed[key] = renumber_ids(value, change, size)
    return changed


def _change_numbers(value: Any, change: IdChange) -> Any:
    """Return an id, or a list of ids or words, with new ids; lists lose those without a new id."""
    if isinstance(value, list):
        changes = [(inner, _change_numbers(inner, change)) for inner in value]
        return [new for old, new in changes if new is not None and _is_word_whole(old, new)]
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value < 0 else change(value)
    return value


def _is_word_whole(old_ids: Any, new_ids: Any) -> bool:
    """Return whether a word's list of ids has lost none; True for the id of a single token."""
    return not isinstance(old_ids, list) or len(new_ids) == len(old_ids)

"""What a model's tokenizer files say: its tokens, which of them were added, and how text is cut."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.merging.tokens.vocabulary_policy import tokens_in, vocabulary
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.json_files import read_json
from emberge.model_folder.model_files import TOKENIZER_FILES
from emberge.wording import join_some

__all__ = [
    "Tokenizer",
    "given_ids",
    "quoted",
    "read_tokenizer",
    "tokenizer_differences",
    "tokenizer_folder",
]

_CUT = ("normalizer", "pre_tokenizer")


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A tokenizer as its files tell it; `folder` is where they lie.

    `algorithm` is "WordPiece", "BPE", "Unigram" or "WordLevel"; `tokens` are all of them with their ids;
    `added` are those that were added to the model's own, as tokenizer.json describes them; `settings` are its
    normalizer and pre-tokenizer; `template` is its chat template, "" without one.
    """

    folder: Path
    algorithm: str
    tokens: Mapping[str, int]
    added: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    template: str = ""
    own: int = 0
    """How many tokens are the model's own, added ones left out unless they are these too."""
    whole: bool = True
    """Whether all of it stands in tokenizer.json."""

    @functools.cached_property
    def texts(self) -> dict[int, str]:
        """Id to token."""
        return {i: token for token, i in self.tokens.items()}

    @functools.cached_property
    def size(self) -> int:
        """The largest id and one."""
        return max(self.tokens.values(), default=-1) + 1

    @functools.cached_property
    def special(self) -> frozenset[str]:
        """The tokens that stand for no text."""
        return frozenset(token for token, entry in self.added.items() if entry.get("special"))


def tokenizer_folder(checkpoint: Checkpoint) -> Path:
    """The folder that the tokenizer lies in: the transformer's, or the whole model's."""
    has = any((checkpoint.trunk / name).is_file() for name in TOKENIZER_FILES)
    return checkpoint.trunk if has else checkpoint.folder


def read_tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    """A model's tokenizer; None where no file tells its tokens.

    Raises:
        CheckpointError: when a file is no JSON.
    """
    folder = tokenizer_folder(checkpoint)
    whole = _mapping(folder / "tokenizer.json")
    tokens = tokens_in(whole) if whole else vocabulary(folder)
    if tokens is None:
        return None
    added = {str(entry["content"]): entry for entry in whole.get("added_tokens") or ()}
    model = whole.get("model") or {}
    return Tokenizer(
        folder,
        str(model.get("type") or "WordPiece"),
        tokens,
        added,
        {part: whole.get(part) for part in _CUT} if whole else {},
        _chat_template(folder),
        len(model.get("vocab") or tokens),
        bool(whole),
    )


def tokenizer_differences(first: Tokenizer, second: Tokenizer) -> Iterator[str]:
    """In what two tokenizers differ, each in a few words; for people."""
    if first.algorithm != second.algorithm:
        yield f"{first.algorithm} in one and {second.algorithm} in the other"
    yield from _tokens_differ(first, second)
    for part in _CUT:
        if first.settings and second.settings and first.settings[part] != second.settings[part]:
            yield f"their {part}s differ"
    if first.template != second.template:
        yield "their chat templates differ"


def _tokens_differ(first: Tokenizer, second: Tokenizer) -> Iterator[str]:
    there = second.texts
    other = sorted(i for i, token in first.texts.items() if there.get(i, token) != token)
    if other:
        pairs = (f"{i} {quoted(first.texts[i])} / {quoted(second.texts[i])}" for i in other)
        yield f"{_count(other, 'id')} another token: {join_some(pairs, 4)}"
    for which, a, b in (("first", first, second), ("second", second, first)):
        only = sorted((a.tokens[token], token) for token in a.tokens.keys() - b.tokens.keys())
        if only:
            listed = join_some((f"{quoted(token)} ({i})" for i, token in only), 4)
            yield f"{_count(only, 'token')} only in the {which}: {listed}"
    apart = first.special ^ second.special
    special = sorted(apart & first.tokens.keys() & second.tokens.keys())
    if special:
        yield f"special in one and plain in the other: {join_some(map(quoted, special), 4)}"


def _count(items: Sequence[Any], noun: str) -> str:
    return f"1 {noun} is" if len(items) == 1 else f"{len(items)} {noun}s are"


def given_ids(tokens: Mapping[str, int], added: Iterable[str]) -> dict[str, int]:
    """The ids that added tokens get when a tokenizer with these tokens of its own is read.

    What a file says of their ids does not count: one that is among the own tokens has that id, another
    follows the largest so far.
    """
    found: dict[str, int] = {}
    last = -1
    for token in added:
        found[token] = tokens.get(token, max(len(tokens), last + 1))
        last = max(last, found[token])
    return found


def quoted(token: str | None) -> str:
    """A token as JSON shows it."""
    return "nothing" if token is None else json.dumps(token, ensure_ascii=False)


def _chat_template(folder: Path) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        found = _mapping(folder / name).get("chat_template")
        if found is not None:
            return found if isinstance(found, str) else json.dumps(found, sort_keys=True)
    return ""


def _mapping(path: Path) -> Mapping[str, Any]:
    found = read_json(path) if path.is_file() else {}
    return found if isinstance(found, dict) else {}

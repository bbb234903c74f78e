"""Tokens and their ids, from tokenizer files; and what to do where those of models differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from emberge.model_folder.json_files import read_json

__all__ = ["VocabularyPolicy", "difference", "same_files", "vocabulary"]


@dataclass(frozen=True, kw_only=True)
class VocabularyPolicy:
    """How rows of embeddings and language heads line up where models' tokenizers differ.

    `token_aware` keeps every id where it is: rows whose token is the same in all models are merged, a
    token that some lack takes its row from those that have it (one model's is copied), and two tokens
    on one id are refused. `union` goes by the tokens' text and appends those that the first model lacks;
    it needs one algorithm. `mean` merges rows by their number, whatever they mean.
    """

    policy: Literal["token_aware", "mean", "union"] = "token_aware"
    """What decides which rows are the same."""
    keep: dict[str, str] = field(default_factory=dict)
    """Token to the model whose row and meaning it takes, where models clash: `{"[MASK]": text}`."""
    pad_to: int = 64
    """A multiple that the rows of a union are padded to."""

    def __post_init__(self) -> None:
        if self.pad_to < 1:
            raise ValueError(f"pad_to must be at least 1, not {self.pad_to}")


def same_files(first: Path, second: Path) -> bool:
    """Whether both folders hold one tokenizer byte for byte."""
    for name in ("tokenizer.json", "vocab.txt"):
        a, b = first / name, second / name
        if a.is_file() and b.is_file():
            return a.read_bytes() == b.read_bytes()
    return False


def vocabulary(folder: Path) -> dict[str, int] | None:
    """Token to id, added tokens with the rest; None where no file tells.

    Raises:
        CheckpointError: when tokenizer.json is no JSON.
    """
    path = folder / "tokenizer.json"
    if path.is_file():
        return tokens_in(read_json(path))
    path = folder / "vocab.txt"
    if path.is_file():
        lines = path.read_text(encoding="utf-8").splitlines()
        return {token: i for i, token in enumerate(lines)}
    return None


def tokens_in(content: Mapping[str, Any]) -> dict[str, int]:
    """Token to id of what a tokenizer.json holds."""
    tokens = _model_tokens((content.get("model") or {}).get("vocab", {}))
    added = content.get("added_tokens") or ()
    return {**tokens, **{str(t["content"]): int(t["id"]) for t in added}}


def _model_tokens(vocab: Any) -> dict[str, int]:
    if isinstance(vocab, Mapping):
        return dict(zip(vocab, map(int, vocab.values()), strict=True))
    return {str(entry[0]): i for i, entry in enumerate(vocab)}  # Unigram: pairs in order of id


def difference(first: Mapping[str, int], second: Mapping[str, int], *, subset: bool) -> str | None:
    """How two vocabularies differ, in a few words; with `subset` one may have tokens more."""
    texts = {i: token for token, i in second.items()}
    for token, i in sorted(first.items(), key=lambda item: item[1]):
        other = texts.get(i)
        if other != token and not (subset and other is None):
            shown = json.dumps(other, ensure_ascii=False) if other is not None else "nothing"
            return (
                f"id {i} is {json.dumps(token, ensure_ascii=False)} in one and {shown} in the other"
            )
    if len(second) > len(first) and not subset:
        known = set(first.values())
        extra = next(t for t, i in second.items() if i not in known)
        return f"{len(second)} tokens for {len(first)}, {json.dumps(extra, ensure_ascii=False)} for one"
    return None

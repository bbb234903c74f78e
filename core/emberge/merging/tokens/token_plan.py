"""A plan that matches the tokens of different tokenizers, and its output files; loads no torch."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.errors import Problem
from emberge.files import write_json, write_text
from emberge.merging.tokens.tokenizer import Tokenizer, assign_token_ids, split_vocabulary
from emberge.model_folder import TokenizerFiles, TrunkConfig, read_object, read_text

# Files of older formats that repeat parts of tokenizer.json.
_OLDER_TOKENIZER_FILES = ("vocab.txt", "vocab.json", "merges.txt", "added_tokens.json")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
NO_ROW = -1
"""The row of a token that a model lacks."""


@dataclass(frozen=True)
class NewToken:
    """A token that is added to the result's tokenizer from a model's; `id` is its id in the result."""

    text: str
    id: int
    owner: Tokenizer


@dataclass(frozen=True)
class TokenPlan:
    """Plan of the result's embedding: the row of each model's embedding that becomes each row.

    `rows` is the number of rows in the result, None for the template's own. `row_maps` contains, for every
    model and the base, the index of its row for each row of the result, or -1 if it has none; it is empty if
    no row moves. `template_map` is the template's map. `tokenizer` is the tokenizer that the result gets,
    with the tokens `new_tokens` inserted. `summary` is a line for the terminal.
    """

    tokenizer: Tokenizer | None = None
    rows: int | None = None
    row_maps: Mapping[str, array[int]] = field(default_factory=dict)
    template_map: array[int] | None = None
    new_tokens: tuple[NewToken, ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    summary: str = ""

    @property
    def digest(self) -> str:
        """A hash of rows and new tokens: plans of equal digest give equal bytes."""
        facts = hashlib.sha256(
            repr((self.rows, [(t.text, t.id) for t in self.new_tokens])).encode()
        )
        for name in sorted(self.row_maps):
            facts.update(name.encode() + b"\x00" + self.row_maps[name].tobytes())
        return facts.hexdigest()

    def write(self, result: Path, trunk: Path) -> None:
        """Write the new tokens into the tokenizer files of a result, and the number of rows into the config.

        `result` is the result's folder, `trunk` that of its transformer; both have all files of the template.
        """
        config = trunk / "config.json"
        if self.rows is not None and config.is_file():
            changed = TrunkConfig(read_object(config)).change({"vocab_size": self.rows})
            write_json(config, changed, durable=False)
        if not self.new_tokens:
            return
        folder = trunk if (trunk / "tokenizer.json").is_file() else result
        if (folder / "tokenizer.json").is_file():
            _insert_tokens(folder, self.new_tokens)
        else:
            _set_vocabulary_lines(folder / "vocab.txt", self.new_tokens)
        _update_config(folder / "tokenizer_config.json", self.new_tokens)


@dataclass(frozen=True)
class TokenModel:
    """A model's tokenizer, and the number of rows of its embedding; each is None if unknown."""

    name: str
    tokenizer: Tokenizer | None
    rows: int | None

    def has(self, token: str, token_id: int) -> bool:
        """Return whether the model has this token at id `token_id`, and an embedding row for it."""
        has_token = self.tokenizer is None or self.tokenizer.texts.get(token_id) == token
        return has_token and (self.rows is None or token_id < self.rows)


def _insert_tokens(folder: Path, new: Sequence[NewToken]) -> None:
    """Insert tokens into tokenizer.json, and remove the files of older formats."""
    files = TokenizerFiles(folder)
    content = files.read_json()
    model = content["model"]
    ids = {token.id for token in new}
    added = [entry for entry in content.get("added_tokens") or () if entry["id"] not in ids]
    for token in new:
        entry = token.owner.added_entries.get(token.text)
        if entry is not None:
            added.append({**entry, "id": token.id, "content": token.text})
        if entry is None or token.text in _read_owner_vocabulary(token):
            _insert_token(model, token)
    content["added_tokens"] = sorted(added, key=lambda entry: int(entry["id"]))
    _require_ids(model, content["added_tokens"])
    if model["type"] == "BPE":
        _append_merges(model, new)
    write_json(files.json_path, content, durable=False)
    for other in (*files.list_other_formats(), *(folder / name for name in _OLDER_TOKENIZER_FILES)):
        other.unlink(missing_ok=True)  # they would lack the new tokens


def _read_owner_vocabulary(token: NewToken) -> Any:
    """Return the owner's base vocabulary, without added tokens."""
    path = token.owner.folder / "tokenizer.json"
    vocabulary = read_object(path)["model"].get("vocab") if path.is_file() else token.owner.tokens
    return vocabulary if isinstance(vocabulary, dict) else dict(vocabulary or ())


def _insert_token(model: dict[str, Any], token: NewToken) -> None:
    """Give a token its id in the base vocabulary, in place of the token that has this id."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        for text in [text for text, token_id in vocabulary.items() if token_id == token.id]:
            del vocabulary[text]
        vocabulary[token.text] = token.id
    else:
        # A Unigram's tokens are numbered by their places: the plan has seen to it that this one fits.
        vocabulary[token.id : token.id + 1] = [
            [token.text, float(_read_owner_vocabulary(token)[token.text])]
        ]


def _require_ids(model: dict[str, Any], added: Sequence[dict[str, Any]]) -> None:
    """Keep added tokens at their ids, by putting them into the base vocabulary if needed."""
    id_by_text = {str(entry["content"]): int(entry["id"]) for entry in added}
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict) and assign_token_ids(vocabulary, id_by_text) != id_by_text:
        vocabulary.update(id_by_text)


def _append_merges(model: dict[str, Any], new: Sequence[NewToken]) -> None:
    """Append the owners' merges that produce the new tokens, in the form of the existing merges."""
    merges = model["merges"]
    are_texts = bool(merges) and isinstance(merges[0], str)
    pairs = {TokenizerFiles.split_merge(merge) for merge in merges}
    for folder in dict.fromkeys(token.owner.folder for token in new):
        path = folder / "tokenizer.json"
        for merge in read_object(path)["model"].get("merges", ()) if path.is_file() else ():
            pair = TokenizerFiles.split_merge(merge)
            if pair not in pairs and {*pair, "".join(pair)} <= model["vocab"].keys():
                pairs.add(pair)
                merges.append(" ".join(pair) if are_texts else list(pair))


def _set_vocabulary_lines(path: Path, new: Sequence[NewToken]) -> None:
    """Write each token into the line of its id: in place of a line, or at the end of the vocabulary file."""
    lines = split_vocabulary(read_text(path))
    for token in sorted(new, key=lambda t: t.id):
        lines[token.id : token.id + 1] = [token.text]
    write_text(path, "".join(f"{line}\n" for line in lines), durable=False)


def _update_config(path: Path, new: Sequence[NewToken]) -> None:
    """Update tokenizer_config.json, if it contains added tokens by id, as some releases wrote them."""
    content: dict[str, Any] = dict(read_object(path)) if path.is_file() else {}
    decoder = content.get("added_tokens_decoder")
    if not isinstance(decoder, dict):
        return
    for token in new:
        entry = token.owner.added_entries.get(token.text)
        if entry is not None:
            flags = {flag: bool(entry.get(flag, False)) for flag in _FLAGS}
            decoder[str(token.id)] = {"content": token.text, **flags}
        else:
            decoder.pop(str(token.id), None)
    content["added_tokens_decoder"] = dict(sorted(decoder.items(), key=lambda item: int(item[0])))
    write_json(path, content, durable=False)

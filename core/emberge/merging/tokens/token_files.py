"""The tokenizer and the config of a result whose vocabulary is another than its template's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emberge.merging.tokens.token_plan import NewToken, TokenPlan
from emberge.merging.tokens.tokenizer import given_ids
from emberge.model_folder import read_json

__all__ = ["write_tokens"]

# Files with the vocabulary in a form of their own, which cannot be changed here.
_CLOSED = ("tokenizer.model", "sentencepiece.bpe.model", "spiece.model")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def write_tokens(plan: TokenPlan, out: Path, trunk: Path) -> None:
    """Write a plan's new tokens into the tokenizer files of a result, and its rows into the config.

    `out` is the result's folder, `trunk` that of its transformer; both have all files of the template.
    """
    if plan.rows is not None:
        _write_size(trunk / "config.json", plan.rows)
    if not plan.new:
        return
    folder = trunk if (trunk / "tokenizer.json").is_file() else out
    if (folder / "tokenizer.json").is_file():
        _whole(folder, plan.new)
    else:
        _lines(folder / "vocab.txt", plan.new)
    _config(folder / "tokenizer_config.json", plan.new)
    path = folder / "added_tokens.json"
    if path.is_file():
        added = {t.text: t.id for t in plan.new if t.text in t.owner.added}
        _dump(path, {**read_json(path), **added})


def _write_size(path: Path, rows: int) -> None:
    if not path.is_file():
        return
    config: dict[str, Any] = dict(read_json(path))
    inner = config.get("text_config")
    place = inner if isinstance(inner, dict) and "vocab_size" in inner else config
    place["vocab_size"] = rows
    _dump(path, config)


def _whole(folder: Path, new: Sequence[NewToken]) -> None:
    """Insert tokens into tokenizer.json, and into the files that repeat it."""
    path = folder / "tokenizer.json"
    content: dict[str, Any] = dict(read_json(path))
    model = content["model"]
    ids = {token.id for token in new}
    added = [entry for entry in content.get("added_tokens") or () if entry["id"] not in ids]
    for token in new:
        entry = token.owner.added.get(token.text)
        if entry is not None:
            added.append({**entry, "id": token.id, "content": token.text})
        if entry is None or token.text in _vocabulary(token):
            _insert(model, token)
    content["added_tokens"] = sorted(added, key=lambda entry: int(entry["id"]))
    _require_ids(model, content["added_tokens"])
    if model.get("type") == "BPE":
        _learn_merges(model, new)
    _dump(path, content)
    _same_elsewhere(folder, model)


def _vocabulary(token: NewToken) -> Any:
    """Return the owner's own tokens, without those that were added to them."""
    path = token.owner.folder / "tokenizer.json"
    found = read_json(path)["model"].get("vocab") if path.is_file() else token.owner.tokens
    return found if isinstance(found, dict) else dict(found or ())


def _insert(model: dict[str, Any], token: NewToken) -> None:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        for text in [text for text, place in vocabulary.items() if place == token.id]:
            del vocabulary[text]
        vocabulary[token.text] = token.id
    else:
        # A Unigram's tokens are numbered by their places: the plan has seen to it that this one fits.
        vocabulary[token.id : token.id + 1] = [[token.text, float(_vocabulary(token)[token.text])]]


def _require_ids(model: dict[str, Any], added: Sequence[dict[str, Any]]) -> None:
    """Keep added tokens on their ids: where reading would give them others, they become own ones too."""
    wanted = {str(entry["content"]): int(entry["id"]) for entry in added}
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict) and given_ids(vocabulary, wanted) != wanted:
        vocabulary.update(wanted)


def _learn_merges(model: dict[str, Any], new: Sequence[NewToken]) -> None:
    """Append the merges by which the owners make their tokens, in the form of those that are there."""
    merges = model["merges"]
    text = bool(merges) and isinstance(merges[0], str)
    known = {_pair(merge) for merge in merges}
    for folder in dict.fromkeys(token.owner.folder for token in new):
        path = folder / "tokenizer.json"
        for merge in read_json(path)["model"].get("merges", ()) if path.is_file() else ():
            pair = _pair(merge)
            if pair not in known and {*pair, "".join(pair)} <= model["vocab"].keys():
                known.add(pair)
                merges.append(" ".join(pair) if text else list(pair))


def _pair(merge: Any) -> tuple[str, str]:
    first, second = merge.split(" ", 1) if isinstance(merge, str) else merge
    return first, second


def _same_elsewhere(folder: Path, model: dict[str, Any]) -> None:
    """Write the vocabulary into the files of older releases, and remove those that cannot represent it."""
    for name in _CLOSED:
        (folder / name).unlink(missing_ok=True)
    vocabulary = model["vocab"]
    path = folder / "vocab.txt"
    if path.is_file():
        ordered = sorted(vocabulary.items(), key=lambda item: item[1])
        if [place for _, place in ordered] == list(range(len(ordered))):
            path.write_text("".join(f"{token}\n" for token, _ in ordered), encoding="utf-8")
        else:
            path.unlink()  # a line is an id there, and ids are left out here
    if (folder / "vocab.json").is_file() and isinstance(vocabulary, dict):
        _dump(folder / "vocab.json", vocabulary)
    path = folder / "merges.txt"
    if path.is_file() and "merges" in model:
        pairs = (" ".join(_pair(merge)) for merge in model["merges"])
        path.write_text("#version: 0.2\n" + "".join(f"{p}\n" for p in pairs), encoding="utf-8")


def _lines(path: Path, new: Sequence[NewToken]) -> None:
    """Insert tokens into a vocabulary of lines, whose numbers are the ids; the plan ensures that they fit."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for token in sorted(new, key=lambda t: t.id):
        lines[token.id : token.id + 1] = [token.text]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _config(path: Path, new: Sequence[NewToken]) -> None:
    """Update tokenizer_config.json, where a release wrote added tokens by id."""
    content: dict[str, Any] = dict(read_json(path)) if path.is_file() else {}
    known = content.get("added_tokens_decoder")
    if not isinstance(known, dict):
        return
    for token in new:
        entry = token.owner.added.get(token.text)
        if entry is not None:
            flags = {flag: bool(entry.get(flag, False)) for flag in _FLAGS}
            known[str(token.id)] = {"content": token.text, **flags}
        else:
            known.pop(str(token.id), None)
    content["added_tokens_decoder"] = dict(sorted(known.items(), key=lambda item: int(item[0])))
    _dump(path, content)


def _dump(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

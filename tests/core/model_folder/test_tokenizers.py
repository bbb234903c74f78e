"""Tokenizers of folders: every id has a row of the embedding, and two are equal only file by file."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emberge import CheckpointError
from emberge.model_folder import (
    TOKENIZER_FILES,
    Checkpoint,
    ModelPair,
    find_unknown_token,
    list_other_formats,
    read_tokenizer_json,
    require_vocabulary,
    split_merge,
    with_mask_token,
)

ROWS = 6
SPECIAL = {"[PAD]": 0, "[CLS]": 1}
WORDS = {"tree": 2, "house": ROWS - 1}


def tokenizer(vocabulary: dict[str, int], **special_ids: int) -> Any:
    """What the check asks of transformers' tokenizers."""
    names = ("bos_token", "cls_token", "sep_token", "eos_token", "pad_token", "unk_token")
    ids = {f"{name}_id": special_ids.get(name) for name in names}
    return SimpleNamespace(
        get_vocab=lambda: vocabulary,
        get_added_vocab=lambda: {"<image>": ROWS + 9},
        all_special_tokens=[*SPECIAL],
        **ids,
    )


@pytest.mark.parametrize(
    ("vocabulary", "special_ids", "said"),
    [
        ({**SPECIAL, **WORDS}, {"cls_token": 1}, None),
        ({**SPECIAL, **WORDS, "<image>": ROWS + 9}, {}, None),
        ({**SPECIAL, **WORDS}, {"eos_token": ROWS - 1}, None),
        ({**SPECIAL, **WORDS, "one": ROWS}, {}, "up to id 6, and the model has 6 rows"),
        ({**SPECIAL, **WORDS}, {"eos_token": ROWS}, "up to id 6, and the model has 6 rows"),
        ({**SPECIAL, **WORDS}, {"unk_token": ROWS + 2}, "up to id 8, and the model has 6 rows"),
        (SPECIAL, {}, "hold no words .* 2 special tokens"),
    ],
)
def test_every_id_that_a_text_may_have_is_below_the_number_of_rows(
    vocabulary: dict[str, int], special_ids: dict[str, int], said: str | None, tmp_path: Path
) -> None:
    for config in ({"vocab_size": ROWS}, {"text_config": {"vocab_size": ROWS}, "vocab_size": 1}):
        (tmp_path / "config.json").write_text(json.dumps(config))
        if said is None:
            require_vocabulary(tokenizer(vocabulary, **special_ids), tmp_path)
        else:
            with pytest.raises(CheckpointError, match=f"{tmp_path}: .*{said}"):
                require_vocabulary(tokenizer(vocabulary, **special_ids), tmp_path)
    (tmp_path / "config.json").write_text('{"vocab_size": null}')
    require_vocabulary(tokenizer({**WORDS, "one": 99}, eos_token=99), tmp_path)


@pytest.mark.parametrize("name", TOKENIZER_FILES)
def test_tokenizers_are_equal_if_both_have_the_same_files(name: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "tokenizer.json").write_text("{}")
    pair, turned = ModelPair(*map(Checkpoint, (one, two))), ModelPair(*map(Checkpoint, (two, one)))
    assert pair.same_tokenizer
    (two / name).unlink(missing_ok=True)
    if name != "tokenizer.json":
        (two / name).write_text("")
    assert not pair.same_tokenizer, "one of them lacks the file"
    assert not turned.same_tokenizer
    (one / name).write_text("a")
    (two / name).write_text("b")
    assert not pair.same_tokenizer
    (two / name).write_text("a")
    assert pair.same_tokenizer


def written(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("model", "kind", "unknown"),
    [
        ({"type": "BPE", "vocab": {"a": 0}}, "BPE", None),
        ({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}, "WordLevel", 0),
        ({"vocab": [["a", -1.0], ["?", 0]], "unk_id": 1, "unk_token": "a"}, "Unigram", 1),
        ({"vocab": {"a": 0}, "merges": [], "unk_token": "a"}, "BPE", 0),
        ({"vocab": {"a": 0}, "unk_token": "[UNK]"}, "WordPiece", 7),
        ({"vocab": {"a": 0}, "unk_token": "?"}, "WordPiece", None),
    ],
)
def test_algorithm_and_unknown_token_are_found_in_files_of_any_release(
    model: dict[str, Any], kind: str, unknown: int | None, tmp_path: Path
) -> None:
    added = [{"content": "[UNK]", "id": 7}]
    path = written(tmp_path / "tokenizer.json", {"model": model, "added_tokens": added})
    content = read_tokenizer_json(path)
    assert content["model"]["type"] == kind
    assert find_unknown_token(content) == unknown


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"added_tokens": []}, "it has no model"),
        ({"model": {"vocab": {"a": True}}, "added_tokens": []}, "no tokens with ids"),
        ({"model": {"vocab": [["a"]]}, "added_tokens": []}, "no tokens with ids"),
        ({"model": {}}, "added_tokens have no content and id"),
        ({"model": {}, "added_tokens": [{"content": 1, "id": 1}]}, "have no content and id"),
        ({"model": {}, "added_tokens": [{"content": "a", "id": True}]}, "have no content and id"),
    ],
)
def test_what_is_no_tokenizer_is_refused(content: Any, said: str, tmp_path: Path) -> None:
    path = written(tmp_path / "tokenizer.json", content)
    with pytest.raises(CheckpointError, match=f"{path}: is no tokenizer: .*{said}; get it again"):
        read_tokenizer_json(path)


def test_parts_of_tokenizers_are_read_in_each_form(tmp_path: Path) -> None:
    assert split_merge("a b c") == split_merge(["a", "b c"]) == ("a", "b c")
    for name in ("unigram.json", "b.model", "a.model", "vocab.txt"):
        (tmp_path / name).touch()
    found = [path.name for path in list_other_formats(tmp_path)]
    assert found == ["a.model", "b.model", "unigram.json"]
    assert with_mask_token(tmp_path, "x") == {"tokenizer_config.json": {"mask_token": "x"}}
    written(tmp_path / "special_tokens_map.json", {"mask_token": "y", "pad_token": "p"})
    assert with_mask_token(tmp_path, "x") == {
        "tokenizer_config.json": {"mask_token": "x"},
        "special_tokens_map.json": {"mask_token": "x", "pad_token": "p"},
    }

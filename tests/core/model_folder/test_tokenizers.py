"""Files of tokenizers of any release are read; two tokenizers are the same only file by file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from emberge import CheckpointError
from emberge.model_folder import Checkpoint, ModelPair, TokenizerFiles
from emberge.model_folder.folder_files import TOKENIZER_FILES


@pytest.mark.parametrize("name", [TOKENIZER_FILES[0], TOKENIZER_FILES[-1]])
def test_tokenizers_are_the_same_if_all_their_files_are_equal(name: str, tmp_path: Path) -> None:
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
    ("model", "kind"),
    [
        ({"type": "WordLevel", "vocab": {"a": 0}}, "WordLevel"),
        ({"vocab": [["a", -1.0], ["?", 0]], "unk_id": 1}, "Unigram"),
        ({"vocab": {"a": 0}, "merges": []}, "BPE"),
        ({"vocab": {"a": 0}}, "WordPiece"),
    ],
)
def test_the_algorithm_is_found_in_files_of_any_release(
    model: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    written(tmp_path / "tokenizer.json", {"model": model, "added_tokens": []})
    assert TokenizerFiles(tmp_path).read_json()["model"]["type"] == kind


@pytest.mark.parametrize(
    "content",
    [
        *(
            {"added_tokens": []},
            {"model": {}},
            {"model": {"vocab": {"a": "0"}}, "added_tokens": []},
        ),
        *({"model": {}, "added_tokens": [entry]} for entry in ({"id": 4}, {"content": "a"})),
    ],
)
def test_a_tokenizer_json_without_model_added_tokens_or_ids_is_refused(
    content: Any, tmp_path: Path
) -> None:
    path = written(tmp_path / "tokenizer.json", content)
    with pytest.raises(CheckpointError, match=f"{path}: is no tokenizer.*; get it again"):
        TokenizerFiles(tmp_path).read_json()


def test_merges_are_split_and_other_formats_listed(tmp_path: Path) -> None:
    assert (
        TokenizerFiles.split_merge("a b c")
        == TokenizerFiles.split_merge(["a", "b c"])
        == ("a", "b c")
    )
    for name in ("unigram.json", "b.model", "a.model", "vocab.txt"):
        (tmp_path / name).touch()
    found = [path.name for path in TokenizerFiles(tmp_path).list_other_formats()]
    assert found == ["a.model", "b.model", "unigram.json"]

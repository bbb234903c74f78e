"""The table of files: what is copied into a result, and what decides embeddings."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge.errors import CheckpointError
from emberge.model_folder import Checkpoint, hash_model, list_hashed_files
from emberge.model_folder.folder_files import FILE_RULES, TOKENIZER_FILES, read_text
from emberge.model_folder.model_files import list_copied_files

# Name: (comes into a result, decides embeddings).
KNOWN = {
    "config.json": (True, True),
    "tokenizer.json": (True, True),
    "sentencepiece.bpe.model": (True, True),
    "modeling_mine.py": (False, True),
    "artifact.metadata": (True, True),
    "LICENSE.txt": (True, False),
    "model.safetensors": (False, True),
    "model.safetensors.index.json": (False, True),
    "adapter_config.json": (False, True),
    "pytorch_model.bin": (False, False),
    "pytorch_model.bin.index.json": (False, False),
    "model.onnx": (False, False),
    "training_args.bin": (False, False),
    "trainer_state.json": (False, False),
    "all_results.json": (False, False),
    "README.md": (False, False),
    "artifact.json": (False, False),
    "metrics.jsonl": (False, False),
    ".gitattributes": (False, False),
    "plot.png": (False, False),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in KNOWN:
        (tmp_path / name).write_text('{"model_type": "bert"}')
    return tmp_path


def test_each_file_is_copied_and_hashed_as_the_table_says(folder: Path) -> None:
    copied = {path.name for path in list_copied_files(Checkpoint(folder))}
    hashed = {path.name for path in list_hashed_files(folder)}
    assert {name: (name in copied, name in hashed) for name in KNOWN} == KNOWN
    assert all(rule.reason and rule.patterns for rule in FILE_RULES)
    for name in TOKENIZER_FILES:
        (folder / name).write_text("{}")
    copied = {path.name for path in list_copied_files(Checkpoint(folder))}
    assert set(TOKENIZER_FILES) <= copied & {path.name for path in list_hashed_files(folder)}
    (folder / "model.safetensors").unlink()
    assert {"pytorch_model.bin", "pytorch_model.bin.index.json"} <= {
        path.name for path in list_hashed_files(folder)
    }


def test_only_files_that_decide_embeddings_change_the_fingerprint(folder: Path) -> None:
    before = hash_model(folder)
    for name, (_, decides) in KNOWN.items():
        old = (folder / name).read_text()
        (folder / name).write_text('{"model_type": "bert", "more": 1}')
        assert (hash_model(folder) != before) == decides, name
        (folder / name).write_text(old)


@pytest.mark.parametrize("content", [b"a\xff", None], ids=["not UTF-8", "no file"])
def test_an_unreadable_text_file_is_named_in_the_error(
    content: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"vocab\.txt: cannot be read as text"):
        read_text(path)

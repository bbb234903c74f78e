"""The table of files: what is copied into a result or with a model, and what decides embeddings."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from emberge.errors import CheckpointError
from emberge.model_folder import Checkpoint, copy_model, hash_model, list_hashed_files
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


@pytest.fixture
def repository(bert: Path, tmp_path: Path) -> Path:
    """A model as a repository has it: with a card, a training's checkpoints and a licence."""
    place = tmp_path / "model"
    shutil.copytree(bert, place)
    for name in ("README.md", "LICENSE", "artifact.json", "checkpoints/step-1/config.json"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("{}")
    return place


@pytest.mark.parametrize("link", [False, True])
def test_only_files_of_the_model_are_copied_or_linked(
    repository: Path, tmp_path: Path, link: bool
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("another model's")
    copy_model(repository, out, link=link)
    assert hash_model(out) == hash_model(repository)
    assert (out / "2_Normalize").is_dir(), "a module without a file"
    assert (out / "LICENSE").is_file()
    for name in ("README.md", "artifact.json", "checkpoints"):
        assert not (out / name).exists()
    weights = [place / "model.safetensors" for place in (repository, out)]
    assert (weights[0].stat().st_ino == weights[1].stat().st_ino) is link


def test_links_into_a_hubs_cache_are_copied_as_files(repository: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hub" / "models--me--model"
    snapshot = cache / "snapshots" / "main"
    (cache / "blobs").mkdir(parents=True)
    for number, file in enumerate(p for p in repository.rglob("*") if p.is_file()):
        place = snapshot / file.relative_to(repository)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, cache / "blobs" / str(number))
        place.symlink_to(os.path.relpath(cache / "blobs" / str(number), place.parent))
    copy_model(snapshot, tmp_path / "out")
    assert hash_model(tmp_path / "out") == hash_model(repository)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_symlink()]
    with pytest.raises(CheckpointError, match="nowhere"):
        copy_model(tmp_path / "nowhere", tmp_path / "out")

"""The table of files: what is copied into a result, and what decides embeddings."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import yaml
from emberge.errors import CheckpointError
from emberge.model_folder import (
    Checkpoint,
    hashed_files,
    model_fingerprint,
    read_front_matter,
    stated_licence,
)
from emberge.model_folder.folder_files import FILES, TOKENIZER_FILES, read_text
from emberge.model_folder.model_files import copied_files

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


def test_each_file_is_copied_and_hashed_as_the_table_says_with_a_reason(folder: Path) -> None:
    copied = {path.name for path in copied_files(Checkpoint(folder))}
    hashed = {path.name for path in hashed_files(folder)}
    assert {name: (name in copied, name in hashed) for name in KNOWN} == KNOWN
    assert all(rule.why and rule.patterns for rule in FILES)
    for name in TOKENIZER_FILES:
        (folder / name).write_text("{}")
    copied = {path.name for path in copied_files(Checkpoint(folder))}
    assert set(TOKENIZER_FILES) <= copied & {path.name for path in hashed_files(folder)}
    (folder / "model.safetensors").unlink()
    assert {"pytorch_model.bin", "pytorch_model.bin.index.json"} <= {
        path.name for path in hashed_files(folder)
    }


def test_the_fingerprint_changes_with_what_decides_embeddings_alone(folder: Path) -> None:
    before = model_fingerprint(folder)
    for name, (_, decides) in KNOWN.items():
        old = (folder / name).read_text()
        (folder / name).write_text('{"model_type": "bert", "more": 1}')
        assert (model_fingerprint(folder) != before) == decides, name
        (folder / name).write_text(old)


def read_licence(folder: Path) -> str | None:
    return stated_licence(read_front_matter(folder))


def state_licence(folder: Path, licence: str, **more: str) -> None:
    front = yaml.safe_dump({"license": licence, **more, "language": "en"})
    (folder / "README.md").write_text(f"---\n{front}---\n\n# A model\n")


def test_a_card_in_whatever_state_states_nothing(tmp_path: Path) -> None:
    assert read_licence(tmp_path) is None
    for text in (
        "no front matter",
        "---\nlicense: mit\nbut no end",
        "---\n[: \n---\n",
        "---\n- a\n---",
    ):
        (tmp_path / "README.md").write_text(text)
        assert read_licence(tmp_path) is None, text
    state_licence(tmp_path, "other", license_name="gemma")
    assert read_licence(tmp_path) == "gemma"
    (tmp_path / "README.md").write_text("---\nlicense:\n- mit\n- apache-2.0\n---\n")
    assert read_licence(tmp_path) == "mit, apache-2.0"
    for nothing in ("", "~", "null", "[[mit]]"):
        (tmp_path / "README.md").write_text(f"---\nlicense: {nothing}\n---\n")
        assert read_licence(tmp_path) is None, nothing
    nested = [
        "a: &a [mit]",
        *(f"{k}: &{k} [*{j}, *{j}]" for j, k in itertools.pairwise("abcdefgh")),
    ]
    (tmp_path / "README.md").write_text("\n".join(["---", *nested, "license: *h", "---"]))
    assert read_licence(tmp_path) is None, "lists in lists are no licence, and none is written out"


@pytest.mark.parametrize("content", [b"a\xff", None], ids=["not UTF-8", "no file"])
def test_a_text_that_cannot_be_read_is_named(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"vocab\.txt: cannot be read as text"):
        read_text(path)

"""Static models of strangers that cannot be read, or would run code: refused with file and remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from emberge import CheckpointError
from emberge_encoder import TextEncoder, write_static_model
from safetensors.torch import load_file
from sentence_transformers.sentence_transformer.modules import Dense

from tests.support.json_files import changing


@pytest.fixture
def static(bert: Path, tmp_path: Path) -> Path:
    """A static model of the tiny BERT's tokenizer, with a Dense at its end."""
    folder = tmp_path / "static"
    folder.mkdir()
    tokenizer = (bert / "tokenizer.json").read_text()
    size = len(json.loads(tokenizer)["model"]["vocab"])
    vectors = np.random.default_rng(0).standard_normal((size, 8)).astype(np.float32)
    write_static_model(folder, vectors, tokenizer, {}, {})
    with changing(folder / "modules.json") as listed:
        kind = "sentence_transformers.models.Dense"
        listed.append({"idx": 2, "name": "2", "path": "2_Dense", "type": kind})
    (folder / "2_Dense").mkdir()
    Dense(8, 4).save(str(folder / "2_Dense"))
    return folder


class Evil:
    """An object whose unpickling leaves a file."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.trace,)


def _pickle(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    trace = Evil(folder / "trace")
    torch.save({**state, "evil": trace}, folder / "pytorch_model.bin")


@pytest.mark.parametrize("place", ["", "2_Dense"])
def test_pickles_are_not_opened(static: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TextEncoder().load(static, device="cpu", dtype="float32").dimension == 4
    _pickle(static / place)
    # Weights under a name that the library does not look for.
    (static / place / "other.safetensors").write_bytes((8).to_bytes(8, "little") + b"{}      ")
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
    with pytest.raises(CheckpointError, match=r"pickle|has no model\.safetensors"):
        TextEncoder().load(static, device="cpu", dtype="float32")
    assert not (static / place / "trace").exists()

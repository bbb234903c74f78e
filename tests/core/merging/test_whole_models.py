"""Whole models of every kind go in and come out as what they were."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from emberge.cli.main import main
from torch import Tensor

from tests.support import tiny
from tests.support.tolerance import assert_combined
from tests.support.whole import TEXTS, embed, files, forward, merge, tensors

# What a result has of its own instead of its parent's.
OURS = {"README.md", "artifact.json"}
PAIRS = [(TEXTS[0], TEXTS[1]), (TEXTS[2], TEXTS[0])]


def activate(folder: Path) -> Tensor:
    from sentence_transformers import SparseEncoder

    return SparseEncoder(str(folder), device="cpu").encode(TEXTS, convert_to_sparse_tensor=False)


def rank(folder: Path) -> Tensor:
    from sentence_transformers import CrossEncoder

    return CrossEncoder(str(folder), device="cpu").predict(PAIRS, convert_to_tensor=True)


def vectors(folder: Path) -> Tensor:
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(str(folder), device="cpu")
    return torch.cat([*model.encode_query(TEXTS)])


Maker = Callable[..., Path]
MODELS: dict[str, tuple[Maker, Callable[[Path], Tensor]]] = {
    "projected": (tiny.projected, embed),
    "splade": (tiny.splade, activate),
    "reranker": (tiny.reranker, rank),
    "colbert": (tiny.colbert, vectors),
    "stanford_colbert": (tiny.stanford_colbert, vectors),
    "pylate": (tiny.pylate, vectors),
    "plain": (tiny.transformer, forward),
}


# How its card says that it is opened.
OPENED = {
    "projected": "SentenceTransformer",
    "splade": "SparseEncoder",
    "reranker": "CrossEncoder",
    **dict.fromkeys(("colbert", "stanford_colbert", "pylate"), "MultiVectorEncoder"),
}


@pytest.mark.parametrize("kind", MODELS)
def test_copies_merge_to_themselves_and_two_models_to_their_mean(kind: str, tmp_path: Path) -> None:
    make, score = MODELS[kind]
    one, two = make(tmp_path / "one", seed=1), make(tmp_path / "two", seed=2)
    same = shutil.copytree(one, tmp_path / "same")
    out = tmp_path / "out"
    assert main(["merge", str(one), str(same), "--strategy", "linear", "--out", str(out)]) == 0
    before, after = files(one), files(out)
    assert set(before) | OURS == set(after) | OURS
    changed = {
        name
        for name in set(before) - OURS
        if before[name] != after[name] and not name.endswith(".safetensors")
    }
    assert changed == set()
    first, second, copied = tensors(one), tensors(two), tensors(out)
    assert copied.keys() == first.keys()
    assert all(torch.equal(copied[name], tensor) for name, tensor in first.items())
    assert torch.equal(score(out), score(one))
    if kind in OPENED:
        require_card(out, OPENED[kind])

    mean = merge(tmp_path / "mean", one, two)
    assert first.keys() == tensors(mean).keys()
    for name, tensor in tensors(mean).items():
        assert not torch.equal(first[name], second[name])
        assert_combined(tensor, [first[name], second[name]], [0.5, 0.5])
    assert not torch.allclose(score(mean), score(one))


def require_card(out: Path, kind: str) -> None:
    """Run the lines of a card that open the model, as a user does."""
    card = (out / "README.md").read_text()
    snippet = card.split("```python\n")[1].split("```")[0]
    assert f"model = {kind}(" in snippet
    place = snippet.split(f"{kind}(")[1].split(")")[0]
    exec(compile(snippet.replace(place, repr(str(out))), "README.md", "exec"), {})

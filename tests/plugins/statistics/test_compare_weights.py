"""Comparisons of two models' weights are what torch computes on whole models, by layer and part."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import CheckpointError, Machine, Model
from emberge_statistics import compare_weights
from emberge_statistics.weight_comparison import MATRIX_PARTS, PairSums, WeightComparison
from safetensors.torch import load_file, save_file

from tests.support import tiny
from tests.support.json_files import changing
from tests.support.peft_adapters import save_adapter

ATTENTION = "layers.0.self_attn.q_proj.weight"
MLP = "layers.0.mlp.up_proj.weight"


def model(folder: Path, adapter: Path | None = None) -> Model:
    return Model(folder.name, folder, "", adapter=adapter)


def write(folder: Path, tensors: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    stored = {name: torch.as_tensor(value).contiguous() for name, value in tensors.items()}
    save_file(stored, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def qwens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal model, a noisy sibling of its trunk, and a wrapped model, which is a stranger."""
    root = tmp_path_factory.mktemp("qwens")
    tiny.transformer(root / "causal", "AutoModelForCausalLM", "qwen3")
    tiny.checkpoint(root / "sibling", "qwen3", like=root / "causal", seed=1)
    tiny.transformer(root / "vision", "AutoModelForImageTextToText", "qwen3-vl", seed=2)
    return root


def sums(
    found: WeightComparison, parts: Sequence[Any] = MATRIX_PARTS, layer: str = "0"
) -> PairSums:
    of_layer = found.of(f"layers.{layer}", parts)
    assert of_layer is not None
    return of_layer


def test_the_worked_numbers_of_a_layer(tmp_path: Path) -> None:
    """Attention [1, 2] in both; MLP [3, 4] against [3, 0]: 14 / (√30 √14), 1, and 9 / (5 · 3)."""
    one = write(tmp_path / "a", {ATTENTION: [[1.0, 2.0]], MLP: [[3.0, 4.0]]})
    other = write(tmp_path / "b", {ATTENTION: [[1.0, 2.0]], MLP: [[3.0, 0.0]]})
    found = compare_weights(model(one), model(other))
    mlp = sums(found, ["mlp"])
    assert sums(found).cosine == pytest.approx(0.683130051, abs=5e-10)
    assert sums(found, ["attention"]).cosine == 1.0
    assert mlp.cosine == pytest.approx(0.6, abs=1e-15)
    assert mlp.norms[2] == 4.0
    assert mlp.distance == pytest.approx(0.8)


def test_norms_of_a_layer_are_no_part_of_its_cosine(tmp_path: Path) -> None:
    norm = "layers.0.input_layernorm.weight"
    one = write(tmp_path / "a", {ATTENTION: [[1.0, 0.0]], norm: [1.0, 1.0]})
    other = write(tmp_path / "b", {ATTENTION: [[0.0, 1.0]], norm: [1.0, 1.0]})
    found = compare_weights(model(one), model(other))
    assert sums(found).cosine == 0.0
    assert sums(found, ["vector"]).cosine == 1.0


def directly(tensors: list[dict[str, torch.Tensor]], part: str) -> dict[str, float]:
    """The numbers of one part of layer 1, and of changes from the third model, from whole tensors."""
    a, b, base = (
        torch.cat([t[n].double().flatten() for n in sorted(t) if f"layers.1.{part}" in n])
        for t in ([{n: v for n, v in one.items() if v.ndim > 1} for one in tensors])
    )
    change_a, change_b = a - base, b - base
    return {
        "cosine": float(a @ b / (a.norm() * b.norm())),
        "distance": float((b - a).norm() / a.norm()),
        "norm_first": float(a.norm()),
        "norm_second": float(b.norm()),
        "norm_change": float((b - a).norm()),
        "sign_conflicts": float((a * b < 0).double().mean()),
        "changes cosine": float(change_a @ change_b / (change_a.norm() * change_b.norm())),
        "changes norm_first": float(change_a.norm()),
        "changes norm_second": float(change_b.norm()),
        "changes sign_conflicts": float((change_a * change_b < 0).double().mean()),
    }


def numbers_of(one: PairSums) -> dict[str, Any]:
    names = ("norm_first", "norm_second", "norm_change")
    shares = {"distance": one.distance, "sign_conflicts": one.sign_conflicts}
    return {"cosine": one.cosine, **shares, **dict(zip(names, one.norms, strict=True))}


@pytest.mark.parametrize("part", ["self_attn", "mlp"])
def test_all_numbers_agree_with_torch_whatever_the_prefix(part: str, qwens: Path) -> None:
    folders = [qwens / name for name in ("causal", "vision", "sibling")]
    comparison = compare_weights(*map(model, folders))
    parts: list[Any] = ["attention" if part == "self_attn" else "mlp"]
    changed = comparison.find_changes("layers.1", parts)
    assert changed is not None
    numbers = numbers_of(sums(comparison, parts, "1"))
    changes = {f"changes {name}": value for name, value in numbers_of(changed).items()}
    prefixes = ("model.", "model.language_model.", "")
    tensors = [
        {
            name.removeprefix(prefix): tensor
            for name, tensor in load_file(folder / "model.safetensors").items()
            if name.startswith(prefix)
        }
        for folder, prefix in zip(folders, prefixes, strict=True)
    ]
    expected = directly(tensors, part)
    # Squares are rounded to 24 bits, and a few hundred of them are summed in each lane.
    found = {**numbers, **changes}
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=2e-5, abs=2e-6)


def test_threads_do_not_change_a_bit(qwens: Path) -> None:
    one, two = (
        compare_weights(
            model(qwens / "causal"), model(qwens / "vision"), machine=Machine(workers=workers)
        )
        for workers in (1, 3)
    )
    assert one == two


def test_close_models_have_a_cosine_to_the_last_digits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = torch.randn(512, 1024)
    near = weights + 1e-4 * torch.randn(512, 1024)
    one, other = (
        write(tmp_path / name, {ATTENTION: w}) for name, w in (("a", weights), ("b", near))
    )
    cosine = sums(compare_weights(model(one), model(other))).cosine
    assert cosine is not None
    a, b = weights.double(), near.double()
    expected = 1 - float((a * b).sum() / (a.norm() * b.norm()))
    assert 1 - cosine == pytest.approx(expected, rel=1e-3)


def test_tensors_of_only_one_model_are_named(qwens: Path) -> None:
    found = compare_weights(model(qwens / "causal"), model(qwens / "vision"))
    (note,) = found.notes
    assert "'vision'" in note
    assert "visual (" in note
    assert all(name.startswith(("visual.", "lm_head.")) for name in found.left_out)


def test_an_adapter_is_compared_as_the_model_with_it(bert: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "adapter", bert)
    found = compare_weights(model(bert), model(bert, adapter=adapter))
    moved = {layer for layer in found.layers if (one := found.of(layer)) and one.distance > 0}
    assert moved
    assert "embeddings" not in moved


def test_other_shapes_are_named_and_nan_is_refused(qwens: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(qwens / "sibling", tmp_path / "other"))
    tensors = load_file(other / "model.safetensors")
    tensors[MLP] = tensors[MLP][:5]
    save_file(tensors, other / "model.safetensors")
    found = compare_weights(model(qwens / "sibling"), model(other))
    assert found.left_out == (MLP,)
    assert any(MLP in note and "[5, 32]" in note for note in found.notes)
    tensors[ATTENTION][0, 0] = torch.nan
    save_file(tensors, other / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"{ATTENTION}: 'other' has NaN"):
        compare_weights(model(qwens / "sibling"), model(other))


def with_tokens(folder: Path, extra: int, swap: tuple[str, str] | None = None) -> None:
    """Append rows to the embedding, and exchange the ids of two tokens."""
    tensors = load_file(folder / "model.safetensors")
    rows = tensors["embed_tokens.weight"]
    with changing(folder / "tokenizer.json") as whole:
        ids = whole["model"]["vocab"]
        if swap is not None:
            a, b = (ids[word] for word in swap)
            ids[swap[0]], ids[swap[1]] = b, a
            rows[[a, b]] = rows[[b, a]]
        tensors["embed_tokens.weight"] = torch.cat([rows, torch.ones(extra, rows.shape[1])])
    save_file(tensors, folder / "model.safetensors")


def embedding(found: Any) -> float:
    of_embeddings = found.of("embeddings")
    assert of_embeddings is not None
    return of_embeddings.distance


def test_rows_of_vocabularies_are_matched_by_token(qwens: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(qwens / "sibling", tmp_path / "other"))
    with_tokens(other, 7)
    longer = compare_weights(model(qwens / "sibling"), model(other))
    assert embedding(longer) == 0
    assert any("rows" in note for note in longer.notes)
    with_tokens(other, 0, ("bank", "card"))
    swapped = compare_weights(model(qwens / "sibling"), model(other))
    assert embedding(swapped) == 0
    assert any("2 rows" in note for note in swapped.notes)


def test_a_bias_of_a_vocabulary_is_matched_by_token(qwens: Path, tmp_path: Path) -> None:
    folders = [Path(shutil.copytree(qwens / "sibling", tmp_path / name)) for name in ("a", "b")]
    with_tokens(folders[1], 0, ("bank", "card"))
    ids = json.loads((folders[1] / "tokenizer.json").read_text())["model"]["vocab"]
    for folder, extra in zip(folders, (0.0, 1000.0), strict=True):
        tensors = load_file(folder / "model.safetensors")
        bias = torch.arange(1.0, 1 + len(tensors["embed_tokens.weight"]))
        bias[[ids["bank"], ids["card"]]] += extra
        save_file({**tensors, "lm_head.bias": bias}, folder / "model.safetensors")
    found = compare_weights(*map(model, folders)).of("lm_head", ["vector"])
    assert found is not None
    assert (found.elements, found.distance) == (len(bias) - 2, 0.0)


def test_the_table_has_a_row_a_layer_and_the_mean(qwens: Path) -> None:
    found = compare_weights(model(qwens / "causal"), model(qwens / "sibling"))
    rows = [line.split() for line in found.table()[2:]]
    assert [row[0] for row in rows] == ["E", "0", "1", "2", "mean"]
    cosines = [found.of(f"layers.{n}") for n in range(3)]
    mean = sum(one.cosine for one in cosines if one and one.cosine) / 3
    assert rows[-1][1] == f"{mean:.4f}"

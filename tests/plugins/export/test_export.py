"""The `export` step on a tiny model: each file is loaded by its runtime, and compared with torch."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import CheckpointError, Plugins, check_recipe, parse_recipe, run_recipe
from emberge_export import export_step, model_exporter
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from tests.support.page_code import run_block
from tests.support.result_folders import artifact_of

needs_onnx = pytest.mark.usefixtures("onnx")


@pytest.fixture(scope="module")
def onnx() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"no {package}: pip install 'emberge[export]'")


@pytest.fixture
def place(bert: Path, tmp_path: Path) -> Path:
    """A folder with a model."""
    shutil.copytree(bert, tmp_path / "model")
    return tmp_path


def parse(place: Path, formats: str, plugins: Plugins) -> Any:
    text = f"steps:\n  served:\n    export: {{model: ./model, formats: [{formats}]}}\n"
    return parse_recipe(text, plugins, path=place / "recipe.yaml")


def run(place: Path, formats: str, plugins: Plugins) -> Path:
    recipe = parse(place, formats, plugins)
    return Path(run_recipe(recipe, place / "out", plugins, quiet=True)["served"])


def figures_of(folder: Path) -> Any:
    return artifact_of(folder).details["exported"]


@pytest.mark.slow
@needs_onnx
def test_every_exported_file_gives_torchs_embeddings(
    place: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(place, "float32, float16, int8", plugins)
    found = figures_of(result)
    assert found.keys() == {"torch", "float32", "float16", "int8"}
    # Sums of tens of float32 products: far nearer than the four nines that are asked for.
    assert found["float32"]["least_cosine"] >= 0.9999
    # Eleven bits a number, through two layers: the error of a cosine is that of a number, squared.
    assert found["float16"]["least_cosine"] >= 0.999
    assert found["int8"]["least_cosine"] < 1.0
    assert found["int8"]["cosine"] > 0.9
    assert all(one["megabytes"] > 0 for one in found.values())
    card = (result / "README.md").read_text()
    assert re.search(rf"least_cosine: {found['float16']['least_cosine']}", card)
    monkeypatch.chdir(place)
    names = run_block("howto/export.md", "onnxruntime")
    expected = SentenceTransformer(str(result), device="cpu").encode(names["texts"])
    assert np.allclose(names["vectors"], expected, atol=1e-4)


@pytest.mark.slow
@needs_onnx
def test_an_unsupported_operator_is_named_in_the_error(
    place: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.bert import modeling_bert

    def forward(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(self.dense(hidden))

    monkeypatch.setattr(modeling_bert.BertIntermediate, "forward", forward)
    with pytest.raises(CheckpointError) as caught:
        run(place, "float32", plugins)
    assert "prims.bessel_j0" in str(caught.value)
    assert "float32" in str(caught.value)
    assert "leave this format out" in str(caught.value)


def test_the_check_names_missing_packages(
    place: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_step, "find_spec", lambda _: None)
    errors = check_recipe(parse(place, "float16", plugins), plugins).errors
    assert [one.message.split()[2] for one in errors] == ["onnx", "onnxscript", "onnxruntime"]
    assert all(one.message.endswith("pip install 'emberge[export]'") for one in errors)
    assert all("recipe" in one.where for one in errors)


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The rows that each file gives in the place of the model's, by the end of its name."""
    rows: dict[str, Any] = {}

    class ModelExporter:
        def __init__(self, folder: Path, _precision: str) -> None:
            assert (folder / "model.safetensors").is_file()

        def embed(self, texts: Sequence[str], path: Path | None = None) -> NDArray[Any]:
            units = np.eye(len(texts) + 1)[:-1]
            return units if path is None else rows[path.name](units.copy())

        def write(self, _name: str, _path: Path) -> int:
            return 1_234_567

    monkeypatch.setattr(model_exporter, "ModelExporter", ModelExporter)
    monkeypatch.setattr(export_step, "find_spec", lambda _: "there")
    return rows


def one_off(cosine: float) -> Any:
    """A function that turns the last row away to this cosine."""

    def turn(rows: NDArray[Any]) -> NDArray[Any]:
        rows[-1, -2:] = cosine, np.sqrt(1 - cosine**2)
        return rows

    return turn


def test_figures_are_the_mean_and_the_least_cosine_of_all_texts(
    place: Path, plugins: Plugins, others: dict[str, Any]
) -> None:
    others["model_int8.onnx"] = one_off(0.6)
    found = figures_of(run(place, "int8", plugins))
    weights = round((place / "model" / "model.safetensors").stat().st_size / 1e6, 2)
    assert found == {
        "torch": {
            **{"file": "model.safetensors", "megabytes": weights},
            **{"texts": 15, "cosine": 1.0, "least_cosine": 1.0},
        },
        "int8": {
            **{"file": "onnx/model_int8.onnx", "megabytes": 1.23},
            **{"texts": 15, "cosine": round(14.6 / 15, 6), "least_cosine": 0.6},
        },
    }


def test_a_float32_export_with_other_embeddings_is_refused(
    place: Path, plugins: Plugins, others: dict[str, Any]
) -> None:
    others["model.onnx"] = one_off(0.9998)
    with pytest.raises(CheckpointError, match=r"float32.*0\.9998"):
        run(place, "float32", plugins)
    others["model.onnx"] = one_off(0.99999)
    run(place, "float32", plugins)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_model_with_nan_or_infinity_is_refused_before_export(
    value: float, place: Path, plugins: Plugins, others: dict[str, Any]
) -> None:
    path = place / "model" / "model.safetensors"
    state = load_file(path)
    name = "embeddings.word_embeddings.weight"
    state[name][-1, -1] = value
    save_file(state, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=f"'{name}' has NaN or infinite values"):
        run(place, "float16", plugins)


def test_an_export_with_embeddings_that_are_not_finite_is_refused(
    place: Path, plugins: Plugins, others: dict[str, Any]
) -> None:
    others["model_fp16.onnx"] = lambda rows: rows * np.nan
    with pytest.raises(CheckpointError, match=r"model_fp16\.onnx: gives embeddings that are not"):
        run(place, "float16", plugins)

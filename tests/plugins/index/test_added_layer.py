"""A map that is known: the linear layer that the new model has in addition to the old one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from emberge import DataError
from emberge.cli.main import main
from emberge_index.translation.added_layer import read_added_layer
from emberge_index.translation.translation_file import read_translation
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer

from tests.support.translations import pairs, recipe

Rotate = Callable[..., Path]


@pytest.fixture
def rotated(tmp_path: Path) -> Rotate:
    """Rotate a model by the step, and return the new folder."""

    def done(model: Path, name: str, **options: int) -> Path:
        rows = [{"text": row["pos"][0]} for row in pairs(80)]
        data = tmp_path / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        step = {"model": str(model), "data": {"path": str(data), "task": "text"}, **options}
        path = tmp_path / f"{name}.yaml"
        path.write_text(json.dumps({"steps": {name: {"rotate": step}}}))
        assert main(["run", str(path), "--out", str(tmp_path / "rotated"), "--quiet"]) == 0
        return tmp_path / "rotated" / name

    return done


def embed(folder: Path, texts: list[str]) -> np.ndarray:
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return np.asarray(model.encode(texts))


@pytest.mark.parametrize("dims", [32, 8])
def test_a_stored_index_becomes_the_rotated_models(
    rotated: Rotate, berts: list[Path], tmp_path: Path, dims: int
) -> None:
    new = rotated(berts[0], "turned", dims=dims)
    path = recipe(tmp_path, "translate", old=str(berts[0]), new=str(new), kind="added_layer")
    assert main(["run", str(path), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    texts = [f"merge {row['pos'][0]}" for row in pairs(20)]  # none of them was embedded for the map
    np.save(tmp_path / "old.npy", embed(berts[0], texts))
    made = tmp_path / "out" / "made"
    words = ["--by", str(made), "--out", str(tmp_path / "new.npy")]
    assert main(["translate", str(tmp_path / "old.npy"), *words]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "new.npy"), embed(new, texts), atol=1e-5)
    header = read_translation(made).header
    assert (header.kind, header.ridge, header.target.dimension) == ("added_layer", None, dims)
    measures = json.loads((made / "artifact.json").read_text())["details"]["translation"][
        "measures"
    ]
    assert measures["cosine"]["p5"] == pytest.approx(1, abs=1e-6)


def test_models_without_such_a_layer_are_refused_before_they_are_loaded(
    berts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe(tmp_path, "translate", old=str(berts[0]), new=str(berts[1]), kind="added_layer")
    assert main(["check", str(path)]) == 2
    told = capsys.readouterr()
    assert "with one linear layer more, as a step `rotate` makes it" in told.out + told.err


def test_a_layer_of_another_model_is_refused(
    rotated: Rotate, berts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = rotated(berts[1], "other")
    path = recipe(tmp_path, "translate", old=str(berts[0]), new=str(other), kind="added_layer")
    assert main(["run", str(path), "--out", str(tmp_path / "out"), "--quiet"]) == 2
    told = capsys.readouterr()
    assert "are not the old one's through its last linear layer (80 of 80 texts differ)" in (
        told.out + told.err
    )


def test_models_with_other_modules_are_refused(
    rotated: Rotate, berts: list[Path], tmp_path: Path
) -> None:
    new = rotated(berts[0], "turned")
    plain = tmp_path / "plain"
    shutil.copytree(berts[0], plain)
    modules = json.loads((plain / "modules.json").read_text())[:2]
    (plain / "modules.json").write_text(json.dumps(modules))  # without Normalize
    with pytest.raises(DataError, match="with one linear layer more"):
        read_added_layer(plain, new)


def test_a_bias_is_part_of_the_map(rotated: Rotate, berts: list[Path]) -> None:
    new = rotated(berts[0], "turned", dims=8)
    weights = new / "3_Dense" / "model.safetensors"
    kept = load_file(weights)
    bias = np.arange(8, dtype=np.float32)
    save_file({**kept, "linear.bias": bias}, weights, {"format": "pt"})
    known = read_added_layer(berts[0], new)
    np.testing.assert_array_equal(known.offset, bias)
    np.testing.assert_array_equal(known.matrix, kept["linear.weight"].T)


def test_a_layer_that_is_not_linear_or_not_finite_is_refused(
    rotated: Rotate, berts: list[Path]
) -> None:
    new = rotated(berts[0], "turned")
    config = new / "3_Dense" / "config.json"
    sound = config.read_text()
    config.write_text(sound.replace("linear.Identity", "activation.Tanh"))
    with pytest.raises(DataError, match="3_Dense: is no linear layer"):
        read_added_layer(berts[0], new)
    config.write_text(sound)
    weights = new / "3_Dense" / "model.safetensors"
    matrix = load_file(weights)["linear.weight"].copy()
    matrix[0, 0] = np.nan
    save_file({"linear.weight": matrix}, weights, {"format": "pt"})
    with pytest.raises(DataError, match="3_Dense: is no linear layer of finite numbers"):
        read_added_layer(berts[0], new)
    weights.write_bytes(b"nothing")
    with pytest.raises(DataError, match="3_Dense: has no weights that can be read"):
        read_added_layer(berts[0], new)

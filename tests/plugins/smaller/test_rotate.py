"""Rotated vectors: whole ones compare as before, prefixes and signs keep more, stock classes open them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import (
    CheckpointError,
    DataEntry,
    DataError,
    DataRef,
    Machine,
    ModelRef,
    check_recipe,
    load_plugins,
    parse_recipe,
    run_recipe,
)
from emberge_encoder import MultiVector, TextEncoder
from emberge_smaller import Rotate, fit_rotation, measure_neighbours, rotations
from emberge_smaller.rotations import list_sizes
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer

from tests.support import tiny
from tests.support.bench import Bench, embedded_texts
from tests.support.glance import Glance
from tests.support.training_data import texts

SOME = list(dict.fromkeys(row.anchor for row in texts(300).rows))
DIMENSION = 32


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return _write(tmp_path / "texts.jsonl", [{"text": text} for text in SOME])


def rotate(folder: Path, data: Path, root: Path, **options: Any) -> tuple[Path, dict[str, Any]]:
    """Run the step; return the result's folder and the artifact's details."""
    bench = Bench(root)
    entry = DataEntry(path=DataRef(str(data)), task="text")
    options = {"backbone": TextEncoder(), **options}
    step = Rotate(model=ModelRef(str(folder)), data=(entry,), **options)
    return bench.folder, dict(step.run(bench).details)


def embed(folder: Path, some: list[str] = SOME[:40]) -> np.ndarray:
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return np.asarray(model.encode(some), np.float64)


def scaled(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("by", ["pca", "itq"])
def test_cosines_of_whole_vectors_are_as_before(
    by: str, bert: Path, data: Path, tmp_path: Path
) -> None:
    out, _ = rotate(bert, data, tmp_path / "run", by=by)
    before, after = embed(bert), embed(out)
    assert after.shape == before.shape
    assert np.abs(after - before).max() > 0.1
    np.testing.assert_allclose(after @ after.T, before @ before.T, atol=1e-6)
    modules = json.loads((out / "modules.json").read_text())
    assert [module["type"].rpartition(".")[2] for module in modules] == [
        *("Transformer", "Pooling", "Dense", "Normalize"),
    ]
    assert [(module["idx"], module["name"]) for module in modules] == [
        (i, str(i)) for i in range(4)
    ]


def test_leading_numbers_are_those_along_the_principal_axes(
    bert: Path, data: Path, tmp_path: Path
) -> None:
    out, _ = rotate(bert, data, tmp_path / "run", dims=8)
    fitted = embed(bert, [text for place, text in enumerate(SOME) if place % 10 != 9])
    _, _, axes = np.linalg.svd(fitted)  # rows, by descending singular values
    expected = scaled(embed(bert) @ axes[:8].T)
    found = embed(out)
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-4)
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-4)


def test_held_out_texts_do_not_move_the_rotation(bert: Path, tmp_path: Path) -> None:
    others = [f"{text} again" if place % 10 == 9 else text for place, text in enumerate(SOME)]
    matrices = []
    for name, some in (("one", SOME), ("two", others), ("three", SOME[:-1])):
        data = _write(tmp_path / f"{name}.jsonl", [{"text": text} for text in some])
        out, details = rotate(bert, data, tmp_path / name)
        matrices.append(load_file(out / "3_Dense" / "model.safetensors")["linear.weight"])
        assert details["rotation"]["texts"] == {
            "fitted": len(some) - len(some) // 10,
            "held out": len(some) // 10,
        }
    assert np.array_equal(matrices[0], matrices[1])
    assert not np.array_equal(matrices[0], matrices[2])


def test_a_model_of_dot_products_is_turned_as_it_is(data: Path, tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "model")
    modules = json.loads((folder / "modules.json").read_text())[:2]
    (folder / "modules.json").write_text(json.dumps(modules))
    out, _ = rotate(folder, data, tmp_path / "run")
    before, after = embed(folder), embed(out)
    np.testing.assert_allclose(after @ after.T, before @ before.T, rtol=1e-4)
    # It is fitted on directions, as cosines are: a long vector counts no more than a short one.
    fitted = scaled(embed(folder, [text for place, text in enumerate(SOME) if place % 10 != 9]))
    _, _, axes = np.linalg.svd(fitted)
    matrix = load_file(out / "2_Dense" / "model.safetensors")["linear.weight"]
    np.testing.assert_allclose(np.abs(matrix[:4]), np.abs(axes[:4]), atol=1e-3)
    assert [path.name for path in out.glob("*_Dense")] == ["2_Dense"]


def test_a_static_model_is_turned(bert: Path, data: Path, tmp_path: Path) -> None:
    recipe = f"""
steps:
  static:
    static_model: {{teacher: {bert}}}
  turned:
    rotate: {{model: $static, data: {{path: {data}, task: text}}, dims: 16}}
"""
    plugins = load_plugins()
    parsed = parse_recipe(recipe, plugins, path=tmp_path / "recipe.yaml")
    assert not check_recipe(parsed, plugins).errors
    run_recipe(parsed, tmp_path / "out", plugins, machine=Machine(), quiet=True)
    assert embed(tmp_path / "out" / "turned").shape == (40, 16)


def test_passages_are_embedded_with_their_prompt_and_no_query_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.checkpoint(tmp_path / "model")
    settings = {"prompts": {"query": "who ", "document": "merge "}, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    rows = [{"query": f"query {i}", "pos": [text]} for i, text in enumerate(SOME)]
    data = _write(tmp_path / "pairs.jsonl", rows)
    prompts = []
    seen = embedded_texts(monkeypatch)
    from emberge.encoding import EmbeddingStore

    original = EmbeddingStore.embed

    def spy(self: EmbeddingStore, some: Any, *, prompt: str = "", max_length: Any) -> Any:
        prompts.append((prompt, list(some), max_length))
        return original(self, some, prompt=prompt, max_length=max_length)

    monkeypatch.setattr(EmbeddingStore, "embed", spy)
    bench = Bench(tmp_path / "run")
    entry = DataEntry(path=DataRef(str(data)), task="retrieval")
    Rotate(model=ModelRef(str(folder)), data=(entry,), backbone=TextEncoder(), max_length=9).run(
        bench
    )
    assert prompts == [("merge ", SOME, 9)]
    assert not any(text.startswith("query") for text in seen)


def test_most_texts_are_spread_over_the_data(bert: Path, data: Path, tmp_path: Path) -> None:
    _, details = rotate(bert, data, tmp_path / "run", most_texts=100)
    assert details["rotation"]["texts"] == {"fitted": 90, "held out": 10}


def test_other_data_is_measured_and_not_fitted_on(bert: Path, data: Path, tmp_path: Path) -> None:
    other = _write(tmp_path / "other.jsonl", [{"text": f"{text} model"} for text in SOME[:50]])
    plain, _ = rotate(bert, data, tmp_path / "plain")
    out, details = rotate(
        bert, data, tmp_path / "run", other_data=(DataEntry(path=DataRef(str(other)), task="text"),)
    )
    assert details["rotation"]["texts"]["other data"] == 50
    assert set(details["rotation"]["kept"]) == {"fitted", "held out", "other data"}
    assert [figure["title"] for figure in details["figures"]][-1] == "Neighbours kept: other data"
    weights = "3_Dense/model.safetensors"
    first, second = (load_file(folder / weights)["linear.weight"] for folder in (plain, out))
    assert np.array_equal(first, second)


# ── the arithmetic ──────────────────────────────────────────────────────────────────────────────


def _rows(count: int = 400, size: int = 16, seed: int = 0) -> np.ndarray:
    """Rows that vary most in directions that lie across all numbers."""
    generator = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(generator.standard_normal((size, size)))
    spread = 0.7 ** np.arange(size)
    return scaled((generator.standard_normal((count, size)) * spread) @ turn).astype(np.float32)


def test_principal_axes_have_fixed_signs_and_descending_parts() -> None:
    rows = _rows()
    axes = fit_rotation(rows, 16, "pca", rounds=1)
    np.testing.assert_allclose(axes.T @ axes, np.eye(16), atol=1e-12)
    parts = ((rows @ axes) ** 2).sum(0)
    assert (np.diff(parts) < 0).all()
    largest = axes[np.abs(axes).argmax(0), np.arange(16)]
    assert (largest > 0).all()
    # The mean is not taken off: rows beside each other have it as their first axis.
    shifted = rows * np.float32(0.01) + np.float32(1)
    first = fit_rotation(shifted, 1, "pca", rounds=1)[:, 0]
    np.testing.assert_allclose(first, np.full(16, 0.25), atol=1e-3)


def test_many_rows_are_summed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _rows()
    whole = fit_rotation(rows, 16, "pca", rounds=1)
    monkeypatch.setattr(rotations, "_CELLS", 16 * 7)
    np.testing.assert_allclose(fit_rotation(rows, 16, "pca", rounds=1), whole, atol=1e-9)


def test_signs_are_approached_as_by_the_paper() -> None:
    rows = _rows()
    axes = fit_rotation(rows, 8, "pca", rounds=1)
    turn, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((8, 8)))
    projected, errors = rows.astype(np.float64) @ axes, []
    for rounds in range(1, 6):
        signs = np.where(projected @ turn > 0, 1.0, -1.0)
        left, _, right = np.linalg.svd(signs.T @ projected)  # Gong et al., section 3: S Ω Ŝᵀ
        turn = (left @ right).T
        found = fit_rotation(rows, 8, "itq", rounds=rounds)
        np.testing.assert_allclose(found, axes @ turn, atol=1e-4)
        np.testing.assert_allclose(found.T @ found, np.eye(8), atol=1e-12)
        turned = rows @ found
        errors.append(float(((np.sign(turned) - turned) ** 2).sum()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0]


def test_kept_neighbours_are_those_of_a_search_by_hand() -> None:
    rows = _rows(60)
    matrix = fit_rotation(rows, 16, "pca", rounds=1)

    def nearest(scores: np.ndarray) -> list[set[int]]:
        np.fill_diagonal(scores, -np.inf)
        order = np.argsort(-scores, axis=1, kind="stable")
        return [set(places) for places in order[:, :10].tolist()]

    def share(vectors: np.ndarray, *, bits: bool) -> float:
        vectors = np.where(vectors > 0, 1.0, -1.0) if bits else scaled(vectors)
        found = nearest(vectors @ vectors.T)
        both = zip(found, nearest(rows @ rows.T), strict=True)
        return sum(len(one & other) for one, other in both) / 600

    turned = rows @ matrix
    kept = measure_neighbours(rows, matrix)
    assert [(one.size, one.precision) for one in kept] == [
        *((16, "float32"), (16, "binary"), (8, "float32"), (8, "binary")),
    ]
    for one in kept:
        bits = one.precision == "binary"
        assert one.before == pytest.approx(share(rows[:, : one.size].astype(float), bits=bits))
        assert one.after == pytest.approx(share(turned[:, : one.size].astype(float), bits=bits))
    by_form = {(one.size, one.precision): one for one in kept}
    assert by_form[16, "float32"].after == pytest.approx(1)
    assert by_form[8, "float32"].after > by_form[8, "float32"].before + 0.2


def test_sizes_are_the_whole_and_three_powers_of_two_below() -> None:
    assert list_sizes(384) == [384, 256, 128, 64]
    assert list_sizes(256) == [256, 128, 64, 32]
    assert list_sizes(20) == [20, 16, 8]
    assert list_sizes(8) == [8]


def test_equal_vectors_are_no_neighbours_of_themselves() -> None:
    rows = np.ones((30, 8), np.float32)
    kept = measure_neighbours(rows, np.eye(8))
    assert all(one.before == one.after for one in kept)
    assert all(0.9 < one.after <= 1 for one in kept if one.precision == "float32")


# ── what is refused ─────────────────────────────────────────────────────────────────────────────


def _problems(tmp_path: Path, options: str) -> str:
    recipe = f"steps:\n  turned:\n    rotate: {{{options}}}\n"
    plugins = load_plugins()
    parsed = parse_recipe(recipe, plugins, path=tmp_path / "recipe.yaml")
    return "\n".join(map(str, check_recipe(parsed, plugins).errors))


def test_what_cannot_be_turned_is_told_before_it_runs(
    bert: Path, data: Path, tmp_path: Path
) -> None:
    entry = f"data: {{path: {data}, task: text}}"
    assert not _problems(tmp_path, f"model: {bert}, {entry}")
    message = _problems(tmp_path, f"model: {bert}, {entry}, dims: {DIMENSION + 1}")
    assert f"have {DIMENSION} numbers, so no {DIMENSION + 1} can be kept; lower dims" in message
    assert "recipe.yaml:3" in message
    bare = tiny.checkpoint(tmp_path / "bare", sentence_transformer=False)
    message = _problems(
        tmp_path, f"model: {bare}, {entry}, backbone: {{text_encoder: {{pooling: mean}}}}"
    )
    assert "has no modules.json to say how it pools" in message
    colbert = tiny.colbert(tmp_path / "colbert")
    message = _problems(tmp_path, f"model: {colbert}, {entry}, backbone: multi_vector")
    assert "gives a vector for each token, and only one vector a text is turned" in message


def test_a_run_refuses_what_no_check_saw(bert: Path, data: Path, tmp_path: Path) -> None:
    colbert = tiny.colbert(tmp_path / "colbert")
    with pytest.raises(DataError, match="only one vector a text is turned"):
        rotate(colbert, data, tmp_path / "tokens", backbone=MultiVector())
    few = _write(tmp_path / "few.jsonl", [{"text": text} for text in SOME[:DIMENSION]])
    with pytest.raises(DataError, match=r"data: 29 distinct texts to fit on.*32 numbers needs"):
        rotate(bert, few, tmp_path / "few")
    assert not any((tmp_path / "few" / "out").iterdir())
    same = tiny.checkpoint(tmp_path / "same")
    flat = {name: np.zeros_like(one) for name, one in load_file(same / "model.safetensors").items()}
    flat |= {name: one + 1 for name, one in flat.items() if name.endswith("LayerNorm.bias")}
    save_file(flat, same / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match="gives all texts the same vector"):
        rotate(same, data, tmp_path / "flat")


def test_a_folder_with_a_module_of_that_number_keeps_it(data: Path, tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "model")
    shutil.copytree(folder / "1_Pooling", folder / "3_Dense")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = "3_Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    out, _ = rotate(folder, data, tmp_path / "run")
    paths = [module["path"] for module in json.loads((out / "modules.json").read_text())]
    assert paths == ["", "3_Dense", "4_Dense", "2_Normalize"]
    before, after = embed(folder), embed(out)
    np.testing.assert_allclose(after @ after.T, before @ before.T, atol=1e-6)


@pytest.mark.parametrize("dims", [None, 8])
def test_the_parameters_of_the_layer_are_foretold(
    bert: Path, data: Path, tmp_path: Path, dims: int | None
) -> None:
    entry = DataEntry(path=DataRef(str(data)), task="text")
    step = Rotate(model=ModelRef(str(bert)), data=(entry,), backbone=TextEncoder(), dims=dims)
    glance = Glance()
    assert not list(step.check(glance))
    out, _ = rotate(bert, data, tmp_path / "run", dims=dims)
    files = [out / "model.safetensors", out / "3_Dense" / "model.safetensors"]
    (expected,) = glance.expectations
    assert expected.parameters is not None
    assert expected.parameters.total == sum(
        one.size for file in files for one in load_file(file).values()
    )


def test_a_step_without_data_is_no_step() -> None:
    with pytest.raises(ValueError, match="'data' names no texts"):
        Rotate(model=ModelRef("./model"), data=())


def test_a_model_that_cannot_be_loaded_ends_without_a_result(data: Path, tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "model")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-64])
    with pytest.raises((CheckpointError, DataError)):
        rotate(folder, data, tmp_path / "run")
    assert not any((tmp_path / "run" / "out").iterdir())

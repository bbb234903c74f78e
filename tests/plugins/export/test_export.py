"""The `export` step on a tiny model: each file is loaded by its runtime, and compared with torch."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import (
    Artifact,
    CheckpointError,
    Plugins,
    check_recipe,
    load_plugins,
    parse_recipe,
    run_recipe,
)
from emberge.results import read_artifact
from emberge_export.export_step import require_same
from emberge_export.parity import Parity

from tests.support import tiny

needs_onnx = pytest.mark.usefixtures("onnx")
CATALOGUE = """\
format: 1
eval:
- {name: words, dir: words, task: retrieval}
- {name: pairs, dir: words, task: sts}
"""


@pytest.fixture(scope="module")
def onnx() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"no {package}: pip install 'emberge[export]'")


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins()


@pytest.fixture
def place(bert: Path, tmp_path: Path) -> Path:
    """A folder with a model, and a catalogue of one retrieval set."""
    shutil.copytree(bert, tmp_path / "model")
    words = [*tiny.WORDS][:12]
    folder = tmp_path / "words"
    folder.mkdir()
    rows = [json.dumps({"_id": f"d{n}", "text": f"{one} of it"}) for n, one in enumerate(words)]
    (folder / "corpus.jsonl").write_text("\n".join(rows))
    rows = [json.dumps({"_id": f"q{n}", "text": f"find {one}"}) for n, one in enumerate(words)]
    (folder / "queries.jsonl").write_text("\n".join(rows))
    (folder / "qrels.tsv").write_text("\n".join(f"q{n}\td{n}\t1" for n in range(len(words))))
    (tmp_path / "catalogue.yaml").write_text(CATALOGUE)
    return tmp_path


def run(place: Path, options: str, plugins: Plugins) -> Path:
    text = f"steps:\n  served:\n    export: {{model: ./model, {options}}}\n"
    recipe = parse_recipe(text, plugins, path=place / "recipe.yaml")
    check_recipe(recipe, plugins).raise_errors()
    return Path(run_recipe(recipe, place / "out", plugins, quiet=True)["served"])


def faults(place: Path, options: str, plugins: Plugins) -> list[Any]:
    text = f"steps:\n  served:\n    export: {{model: ./model, {options}}}\n"
    recipe = parse_recipe(text, plugins, path=place / "recipe.yaml")
    return list(check_recipe(recipe, plugins).problems)


def artifact_of(folder: Path) -> Artifact:
    found = read_artifact(folder)
    assert isinstance(found, Artifact)
    return found


@pytest.mark.slow
@needs_onnx
def test_every_file_gives_torchs_embeddings_in_its_runtime(place: Path, plugins: Plugins) -> None:
    result = run(place, "probe: ./catalogue.yaml, most_loss: 1", plugins)
    found = artifact_of(result).details["exported"]
    assert found.keys() == {"torch", "float32", "float16", "int8"}
    # Sums of tens of float32 products: far nearer than the four nines that are asked for.
    assert found["float32"]["least_cosine"] >= 0.9999
    # Eleven bits a number, through two layers: the error of a cosine is that of a number, squared.
    assert found["float16"]["least_cosine"] >= 0.999
    assert found["int8"]["least_cosine"] < 1.0
    assert found["int8"]["cosine"] > 0.9
    assert found["float32"]["ndcg_at_10"] == found["torch"]["ndcg_at_10"]
    for one in found.values():
        assert one["texts_per_second"] > 0
        assert one["megabytes"] > 0
    # And in the card.
    card = (result / "README.md").read_text()
    assert re.search(rf"least_cosine: {found['float16']['least_cosine']}", card)


@pytest.mark.slow
@needs_onnx
def test_a_stranger_to_emberge_loads_the_file(place: Path, plugins: Plugins) -> None:
    """With onnxruntime and a tokenizer alone, texts of other lengths and numbers than it was traced with."""
    import onnxruntime
    from transformers import AutoModel, AutoTokenizer

    result = run(place, "formats: [float32]", plugins)
    tokenizer = AutoTokenizer.from_pretrained(result)
    model = AutoModel.from_pretrained(result).eval()
    session = onnxruntime.InferenceSession(str(result / "onnx" / "model.onnx"))
    for texts in (["a"], ["a new value", "sort the list of values", "music", "travel", "b"]):
        given = tokenizer(texts, padding=True, return_tensors="pt")
        names = {one.name for one in session.get_inputs()}
        found = session.run(
            ["last_hidden_state"], {k: v.numpy() for k, v in given.items() if k in names}
        )
        with torch.inference_mode():
            expected = model(**given).last_hidden_state
        attended = given["attention_mask"].bool()
        found_states = torch.from_numpy(found[0])[attended]
        # Both are float32: sums of at most 64 products, through two layers.
        torch.testing.assert_close(found_states, expected[attended], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@needs_onnx
def test_the_result_is_the_model_itself_too(place: Path, plugins: Plugins) -> None:
    from sentence_transformers import SentenceTransformer

    result = run(place, "formats: [float32]", plugins)
    one = SentenceTransformer(str(place / "model"), device="cpu").encode(["a new value"])
    other = SentenceTransformer(str(result), device="cpu").encode(["a new value"])
    assert (one == other).all()


@pytest.mark.slow
@needs_onnx
def test_an_operator_that_cannot_be_exported_is_named(
    place: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.bert import modeling_bert

    def forward(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(self.dense(hidden))

    monkeypatch.setattr(modeling_bert.BertIntermediate, "forward", forward)
    with pytest.raises(CheckpointError) as caught:
        run(place, "formats: [float32]", plugins)
    assert "(operator prims.bessel_j0)" in str(caught.value)
    assert "float32" in str(caught.value)
    assert "leave this format out" in str(caught.value)


def test_a_missing_package_is_an_error_of_the_check(
    place: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    from emberge_export import export_step

    monkeypatch.setattr(export_step, "find_spec", lambda _: None)
    found = [one for one in faults(place, "formats: [int8]", plugins) if one.severity == "error"]
    assert {"onnx", "onnxscript", "onnxruntime"} == {one.message.split()[2] for one in found}
    assert all("emberge[export]" in one.message for one in found)
    assert all("recipe" in one.where for one in found)
    openvino = faults(place, "formats: [openvino]", plugins)
    (error,) = [one for one in openvino if one.severity == "error"]
    assert error.message.endswith("pip install openvino")


@needs_onnx
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("probe: ./catalogue.yaml, probe_set: pairs", "retrieval"),
        ("probe: ./catalogue.yaml, probe_set: wrods", "words"),
        ("probe_set: words", "probe"),
        ("formats: []", "format"),
    ],
)
def test_a_probe_that_gives_no_judgements_is_found_before_the_run(
    options: str, words: str, place: Path, plugins: Plugins
) -> None:
    errors = [one for one in faults(place, options, plugins) if one.severity == "error"]
    assert errors
    assert words in errors[0].message


@pytest.mark.slow
def test_openvino_gives_torchs_embeddings_too_and_tells_nobody(
    place: Path, plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "openvino_telemetry.main" not in sys.modules
    monkeypatch.setenv("HOME", str(tmp_path))
    result = run(place, "formats: [openvino], probe: ./catalogue.yaml", plugins)
    found = artifact_of(result).details["exported"]
    # Eight bits a number where the processor has bfloat16, through two layers.
    assert found["openvino"]["least_cosine"] >= 0.9995
    assert abs(found["openvino"]["ndcg_at_10"] - found["torch"]["ndcg_at_10"]) < 0.1
    # The names by which sentence-transformers' backend finds it.
    names = {path.name for path in (result / "openvino").iterdir()}
    assert names == {"openvino_model.xml", "openvino_model.bin"}
    assert not (tmp_path / "intel").exists(), "where its telemetry keeps the number of this user"
    assert "openvino_telemetry.main" not in sys.modules


@pytest.mark.parametrize(("kind", "cosine"), [("float32", 0.9995), ("openvino", 0.99)])
def test_an_export_of_another_model_is_refused(kind: str, cosine: float) -> None:
    one = Parity("f", 1.0, 1.0, cosine, None, 1.0, 1.0)
    with pytest.raises(CheckpointError, match=rf"{kind}.*{cosine}"):
        require_same("acme/small", {kind: one})
    require_same("acme/small", {kind: dataclasses.replace(one, least_cosine=0.99999)})

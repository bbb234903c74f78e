"""A static model in model2vec's layout: read by hand, and by model2vec where it is installed."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import CheckpointError, check_recipe, load_plugins, parse_recipe, run_recipe
from emberge.model_folder import write_static_model
from emberge.results import read_artifact
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from tests.support import tiny

Embed = Callable[[Path, Sequence[str]], NDArray[Any]]
TEXTS = (
    "list the files of a table",
    "open 漢字 \N{MELTING FACE} file",
    "\N{MELTING FACE}",
    "",
    " ",
    "x" * 300,
    " ".join(word for word in tiny.WORDS for _ in range(40)),
    "[CLS] open [SEP] file [UNK] [PAD]",
)


def embed_by_hand(folder: Path, texts: Sequence[str]) -> NDArray[Any]:
    """The embeddings by the layout's rules: the mean of known tokens' rows, scaled to length one."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert (config["model_type"], config["max_length"]) == ("model2vec", None)
    tensors = load_file(folder / "model.safetensors")
    rows = tensors["embeddings"][tensors.get("mapping", np.arange(len(tensors["embeddings"])))]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    unknown = tokenizer.token_to_id("[UNK]")
    found = []
    for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False):
        known = [number for number in encoding.ids if number != unknown]
        mean = rows[known].mean(0) if known else np.zeros(rows.shape[1], np.float32)
        length = np.linalg.norm(mean) if config["normalize"] else 1
        found.append(mean / length if length else mean)
    return np.array(found)


def embed_by_model2vec(folder: Path, texts: Sequence[str]) -> NDArray[Any]:
    """The embeddings of the library."""
    library = importlib.import_module("model2vec")
    found: NDArray[Any] = library.StaticModel.from_pretrained(folder).encode(list(texts))
    return found


# The library is no requirement of emberge or of its tests: the rules by hand are always tested, and the
# library beside them where it is installed.
READERS = [embed_by_hand, *([embed_by_model2vec] if find_spec("model2vec") else [])]


def embed_by_sentence_transformers(folder: Path, texts: Sequence[str]) -> NDArray[Any]:
    """The embeddings of the stock class, without prompts."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return np.asarray(model.encode(list(texts), prompt=""))


@pytest.fixture(scope="module")
def trained(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static model that was distilled on texts with unknown words."""
    place = tmp_path_factory.mktemp("static")
    rows = [
        f"{one} \N{MELTING FACE} of the {other}"
        for one in tiny.WORDS
        for other in ("file", "table")
    ]
    (place / "texts.jsonl").write_text("\n".join(json.dumps({"text": row}) for row in rows))
    recipe = f"""
seed: 0
steps:
  tokens:
    static_model: {{teacher: {bert}}}
  static:
    distil:
      teacher: {bert}
      student: {{model: $tokens}}
      data: {{path: texts.jsonl, task: text}}
      sampler: {{batch_shuffle: {{batch_size: 8}}}}
      learning_rate: 0.01
      epochs: 2
"""
    parsed = parse_recipe(recipe, load_plugins(), path=place / "recipe.yaml")
    results = run_recipe(parsed, place / "out", load_plugins(), quiet=True)
    start, end = (
        load_file(results[name].path / "model.safetensors") for name in ("tokens", "static")
    )
    assert not np.allclose(start["embedding.weight"], end["embedding.weight"], atol=1e-3)
    return Path(results["static"])


def check(model: Path, formats: str = "[model2vec]") -> Any:
    text = f"steps:\n  served:\n    export: {{model: {model}, formats: {formats}}}\n"
    recipe = parse_recipe(text, load_plugins(), path=model.parent / "recipe.yaml")
    return recipe, check_recipe(recipe, load_plugins())


def export(model: Path, out: Path) -> Path:
    recipe, report = check(model)
    report.raise_errors()
    return Path(run_recipe(recipe, out, load_plugins(), quiet=True)["served"])


@pytest.mark.parametrize("embed", READERS)
def test_the_exported_folder_gives_the_models_embeddings(
    trained: Path, tmp_path: Path, embed: Embed
) -> None:
    """Also of texts with unknown words, of no text, of long ones, and with special tokens in them."""
    folder = export(trained, tmp_path / "out")
    found = embed(folder / "model2vec", TEXTS)
    expected = embed_by_sentence_transformers(trained, TEXTS)
    assert np.allclose(found, expected, atol=1e-6)
    nonzero = expected.any(1)
    assert nonzero.tolist() == [True, True, False, False, False, False, True, True]
    cosines = (found * expected).sum(1)[nonzero]
    assert (1 - cosines <= 1e-6).all()
    details = read_artifact(folder).details  # type: ignore[union-attr]
    assert details["exported"]["model2vec"]["least_cosine"] >= 0.999999


def test_sentence_transformers_and_emberge_read_the_exported_table_too(
    trained: Path, tmp_path: Path
) -> None:
    from emberge.encoding import TextEmbedder
    from emberge_encoder import TextEncoder

    folder = export(trained, tmp_path / "out")
    encoder = TextEncoder().load(folder, device="cpu", dtype="float32")
    expected = embed_by_sentence_transformers(trained, TEXTS)
    assert np.allclose(TextEmbedder(encoder).embed(TEXTS), expected, atol=1e-6)
    assert np.allclose(embed_by_sentence_transformers(folder, TEXTS), expected, atol=1e-6)


@pytest.mark.parametrize("embed", READERS)
def test_ids_with_gaps_have_a_map_to_rows(tmp_path: Path, embed: Embed) -> None:
    """The vocabulary has 3 tokens, and the table 6 rows."""
    content = {
        "version": "1.0",
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 9,
            "vocab": {"[UNK]": 0, "open": 2, "file": 5},
        },
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
    }
    table = np.arange(18, dtype=np.float32).reshape(6, 3) - 4
    table[0] = 0
    (tmp_path / "model").mkdir()
    write_static_model(tmp_path / "model", table, json.dumps(content), {}, {})
    folder = export(tmp_path / "model", tmp_path / "out") / "model2vec"
    mean = table[2] + table[5]
    assert np.allclose(embed(folder, ["open file"])[0], mean / np.linalg.norm(mean), atol=1e-6)
    assert "mapping" in load_file(folder / "model.safetensors")


@pytest.mark.parametrize("embed", READERS)
def test_a_model_that_does_not_normalise_stays_so(
    trained: Path, tmp_path: Path, embed: Embed
) -> None:
    model = tmp_path / "model"
    shutil.copytree(trained, model)
    modules = json.loads((model / "modules.json").read_text())
    (model / "modules.json").write_text(json.dumps(modules[:1]))
    folder = export(model, tmp_path / "out") / "model2vec"
    found = embed(folder, TEXTS[:1])
    assert np.allclose(found, embed_by_sentence_transformers(model, TEXTS[:1]), atol=1e-6)
    assert not np.isclose(np.linalg.norm(found), 1)


def test_a_training_leaves_the_unknown_token_without_a_vector(trained: Path) -> None:
    table = load_file(trained / "model.safetensors")["embedding.weight"]
    tokenizer = Tokenizer.from_file(str(trained / "tokenizer.json"))
    assert tokenizer.token_to_id("[UNK]") in tokenizer.encode("\N{MELTING FACE}").ids
    assert not table[tokenizer.token_to_id("[UNK]")].any()


def test_an_unknown_token_with_a_vector_is_refused(trained: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(trained, model)
    table = load_file(model / "model.safetensors")["embedding.weight"].copy()
    table[Tokenizer.from_file(str(model / "tokenizer.json")).token_to_id("[UNK]")] = 0.5
    save_file({"embedding.weight": table}, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"unknown token has a vector.*static_model"):
        export(model, tmp_path / "out")


def test_formats_of_transformers_are_refused_for_a_static_model_and_the_other_way_round(
    trained: Path, bert: Path
) -> None:
    (error,) = check(trained, "[float32, int8, model2vec]")[1].errors
    assert "float32, int8" in error.message
    assert "write formats: [model2vec]" in error.message
    (error,) = check(bert, "[model2vec]")[1].errors
    assert "is no static model" in error.message
    assert "recipe.yaml" in error.where


def test_modules_and_prompts_that_model2vec_lacks_are_told_by_the_check(
    trained: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(trained, model)
    settings = json.loads((model / "config_sentence_transformers.json").read_text())
    prompted = {**settings, "prompts": {"query": "query: "}}
    (model / "config_sentence_transformers.json").write_text(json.dumps(prompted))
    (warning,) = check(model)[1].of("warning")
    assert "query" in warning.message
    assert "yourself" in warning.message
    modules = json.loads((model / "modules.json").read_text())
    layer_norm = {"path": "2_LayerNorm", "type": "sentence_transformers.models.LayerNorm"}
    (model / "modules.json").write_text(
        json.dumps([*modules, {"idx": 2, "name": "2", **layer_norm}])
    )
    assert any("LayerNorm" in error.message for error in check(model)[1].errors)

"""Two models in one folder: queries have the one's vectors, documents the other's, and no one runs code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import (
    Artifact,
    CheckpointError,
    ModelRef,
    check_recipe,
    load_plugins,
    parse_recipe,
    run_recipe,
)
from emberge.encoding import TextEmbedder
from emberge.files import UnsoundFileError
from emberge.model_folder import Checkpoint, Layout, count_parameters, read_modules, read_routes
from emberge.results import read_artifact
from emberge_encoder import TextEncoder
from emberge_smaller import PairEncoders
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer

from tests.support import tiny
from tests.support.bench import Bench, model_at
from tests.support.glance import Glance
from tests.support.whole import files

TEXTS = ["the list of files", "sort a table by its key column", "health"]


def _with_settings(folder: Path, **changes: Any) -> Path:
    path = folder / "config_sentence_transformers.json"
    settings = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**settings, **changes}))
    return folder


def _prompted(folder: Path, architecture: str, prompts: Mapping[str, str], **more: Any) -> Path:
    return _with_settings(tiny.checkpoint(folder, architecture), prompts=dict(prompts), **more)


def _pair(queries: Path, documents: Path, root: Path) -> Path:
    bench = Bench(root)
    references = ModelRef(str(queries)), ModelRef(str(documents))
    artifact = PairEncoders(queries=references[0], documents=references[1]).run(bench)
    assert artifact.parents == (references[1].text, references[0].text)
    return bench.folder


def _open(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", trust_remote_code=False)


def _static(folder: Path, teacher: Path) -> Path:
    """A static model of the teacher's tokens and of its size."""
    plugins = load_plugins()
    text = f"steps:\n  tokens:\n    static_model: {{teacher: '{teacher}'}}\n"
    recipe = parse_recipe(text, plugins, path=folder / "recipe.yaml")
    return run_recipe(recipe, folder / "out", plugins, quiet=True)["tokens"].path


def _same(found: Any, wanted: Any) -> bool:
    return bool(np.array_equal(np.asarray(found), np.asarray(wanted)))


def test_each_side_has_the_vectors_and_prompts_of_its_model(tmp_path: Path) -> None:
    small = _prompted(tmp_path / "small", "bert", {"query": "find: ", "document": "no: "})
    large = _prompted(
        tmp_path / "large",
        "xlm-roberta",
        {"query": "no: ", "passage": "text: ", "sts": "alike: "},
        default_prompt_name="sts",
    )
    (large / "LICENSE").write_text("terms")
    both = _open(_pair(small, large, tmp_path / "run"))
    # The library finds `passage` only where no `document` is before it, as in these two.
    old = _open(large)
    assert _same(both.encode_query(TEXTS), _open(small).encode_query(TEXTS))
    assert _same(both.encode_document(TEXTS), old.encode(TEXTS, prompt="text: "))
    assert _same(both.encode(TEXTS), old.encode(TEXTS))
    assert not _same(both.encode(TEXTS), old.encode(TEXTS, prompt=""))
    folder = tmp_path / "run" / "out"
    assert (folder / "document_0_Transformer" / "LICENSE").read_text() == "terms"
    settings = json.loads((folder / "config_sentence_transformers.json").read_text())
    assert settings["prompts"]["query"] == "find: "
    assert settings["prompts"]["document"] == "text: "


def test_a_default_prompt_that_is_for_queries_is_not_taken_for_documents(tmp_path: Path) -> None:
    small = _prompted(tmp_path / "small", "bert", {"query": "find: "})
    large = _prompted(tmp_path / "large", "bert", {"query": "q: "}, default_prompt_name="query")
    folder = _pair(small, large, tmp_path / "run")
    settings = json.loads((folder / "config_sentence_transformers.json").read_text())
    assert settings["default_prompt_name"] is None
    assert _same(_open(folder).encode(TEXTS), _open(large).encode(TEXTS, prompt=""))


def test_linear_layers_and_normalisation_stay_with_their_side(tmp_path: Path) -> None:
    small = tiny.projected(tmp_path / "small", dimension=32)
    large = tiny.checkpoint(tmp_path / "large", "bert")
    both = _open(_pair(small, large, tmp_path / "run"))
    assert _same(both.encode_query(TEXTS), _open(small).encode_query(TEXTS))
    assert _same(both.encode_document(TEXTS), _open(large).encode_document(TEXTS))


def test_a_static_model_may_embed_queries_or_documents(bert: Path, tmp_path: Path) -> None:
    static = _static(tmp_path, bert)
    light, heavy = _open(static), _open(bert)
    for name, (queries, documents) in {"a": (static, bert), "b": (bert, static)}.items():
        folder = _pair(queries, documents, tmp_path / name)
        both = _open(folder)
        first, second = (light, heavy) if queries == static else (heavy, light)
        assert _same(both.encode_query(TEXTS), first.encode_query(TEXTS))
        assert _same(both.encode_document(TEXTS), second.encode_document(TEXTS))
        for route, model in (("query", first), ("document", second)):
            backbone = TextEncoder(route=route)
            facts = backbone.describe(folder)
            assert (facts.problems, facts.dimension) == ((), 32)
            encoder = backbone.load(folder, device="cpu", dtype="float32")
            found = TextEmbedder(encoder).embed(TEXTS)
            np.testing.assert_allclose(found, model.encode(TEXTS), atol=1e-6)


def test_weights_are_the_models_own(bert: Path, berts: list[Path], tmp_path: Path) -> None:
    folder = _pair(bert, berts[0], tmp_path / "run")
    for route, model in (("query", bert), ("document", berts[0])):
        found = load_file(folder / f"{route}_0_Transformer" / "model.safetensors")
        wanted = load_file(model / "model.safetensors")
        assert found.keys() == wanted.keys()
        assert all(_same(found[name], wanted[name]) for name in wanted)
    before = files(bert)
    (folder / "query_0_Transformer" / "model.safetensors").write_bytes(b"")
    assert files(bert) == before


def test_pairs_merge_route_by_route(bert: Path, berts: list[Path], tmp_path: Path) -> None:
    _pair(berts[0], bert, tmp_path / "a")
    _pair(berts[1], bert, tmp_path / "b")
    plugins = load_plugins()
    text = "steps:\n  soup:\n    merge: {models: [./a/out, ./b/out], strategy: linear}\n"
    recipe = parse_recipe(text, plugins, path=tmp_path / "recipe.yaml")
    soup = run_recipe(recipe, tmp_path / "out", plugins, quiet=True)["soup"].path
    name = "query_0_Transformer/model.safetensors"
    one, two, found = (load_file(f / name) for f in (tmp_path / "a/out", tmp_path / "b/out", soup))
    assert found.keys() == one.keys()
    for tensor, values in found.items():
        np.testing.assert_allclose(values, (one[tensor] + two[tensor]) / 2, atol=1e-7)
    assert _same(_open(soup).encode_document(TEXTS), _open(bert).encode_document(TEXTS))


# ── a folder's routes ───────────────────────────────────────────────────────────────────────────


def test_routes_are_read_with_the_modules_after_the_router(tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer.modules import Normalize, Router

    sides = [list(_open(tiny.checkpoint(tmp_path / n, "bert"))) for n in ("a", "b")]
    model = SentenceTransformer(modules=[Router.for_query_document(*sides), Normalize()])
    model.save_pretrained(str(tmp_path / "stock"), create_model_card=False)
    routes = read_routes(tmp_path / "stock")
    assert routes is not None
    assert (routes.choose("query"), routes.choose("sts")) == ("query", "document")
    kinds = [module.kind for module in read_modules(tmp_path / "stock", "query")]
    assert kinds == [module.kind for module in read_modules(tmp_path / "a")] + ["Normalize"]
    encoder = TextEncoder(route="query").load(tmp_path / "stock", device="cpu", dtype="float32")
    found = TextEmbedder(encoder).embed(TEXTS)
    np.testing.assert_allclose(found, model.encode_query(TEXTS), atol=1e-6)
    assert read_routes(tmp_path / "a") is None


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"structure": {"query": ["../a"]}}, "query"),
        ({"structure": {"query": []}}, "query"),
        ({"structure": []}, "structure"),
        ({"parameters": {"default_route": "image"}}, "default_route"),
        ({"parameters": {"route_mappings": {"(None, 'image')": "query"}}}, "route_mappings"),
    ],
)
def test_a_broken_router_is_refused(
    bert: Path, tmp_path: Path, change: dict[str, Any], place: str
) -> None:
    folder = _pair(bert, bert, tmp_path / "run")
    path = folder / "router_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CheckpointError, match=place) as error:
        read_routes(folder)
    assert "router_config.json" in str(error.value)
    with pytest.raises(CheckpointError, match=place):
        Layout.read(folder, "query")


def test_a_link_out_of_a_route_is_refused(bert: Path, tmp_path: Path) -> None:
    folder = _pair(bert, bert, tmp_path / "run")
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (folder / "query_0_Transformer" / "config.json").unlink()
    (folder / "query_0_Transformer" / "config.json").symlink_to(secret)
    with pytest.raises(UnsoundFileError, match=r"config\.json"):
        Layout.read(folder, "query")


def test_one_route_is_read_and_not_trained(bert: Path, tmp_path: Path) -> None:
    folder = _pair(bert, bert, tmp_path / "run")
    (refusal,) = TextEncoder().describe(folder).problems
    assert "route" in refusal
    assert "no route 'image'" in TextEncoder(route="image").describe(folder).problems[0]
    assert "one encoder" in TextEncoder(route="query").describe(bert).problems[0]
    facts = TextEncoder(route="query").describe(folder)
    assert "pair" in facts.training_problems[0]
    encoder = TextEncoder(route="query").load(folder, device="cpu", dtype="float32")
    with pytest.raises(CheckpointError, match="route"):
        encoder.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


# ── what cannot be paired ───────────────────────────────────────────────────────────────────────


def _errors(place: Path, steps: str) -> str:
    plugins = load_plugins()
    recipe = parse_recipe("steps:\n" + steps, plugins, path=place / "recipe.yaml")
    return "\n".join(str(error) for error in check_recipe(recipe, plugins).errors)


@pytest.mark.parametrize(
    ("queries", "place"),
    [
        ("./narrow", "dense: 32"),
        ("./pair/out", "already"),
        ("./bare", "SentenceTransformer"),
        ("./ranks", "logits"),
        ("./bert+./adapter", "merge it"),
    ],
)
def test_what_cannot_be_a_route_is_refused_before_the_work(
    bert: Path, tmp_path: Path, queries: str, place: str
) -> None:
    (tmp_path / "bert").symlink_to(bert)
    match queries:
        case "./narrow":
            tiny.checkpoint(tmp_path / "narrow", "bert", hidden_size=16)
        case "./pair/out":
            _pair(bert, bert, tmp_path / "pair")
        case "./bare":
            tiny.transformer(tmp_path / "bare", "AutoModel", "bert")
        case "./ranks":
            tiny.reranker(tmp_path / "ranks")
    step = f"  both:\n    pair_encoders: {{queries: {queries}, documents: ./bert}}\n"
    assert place in _errors(tmp_path, step)
    if "+" in queries:
        return
    bench = Bench(tmp_path / "run")
    with pytest.raises(CheckpointError, match=place):
        PairEncoders(queries=ModelRef(str(tmp_path / queries)), documents=ModelRef(str(bert))).run(
            bench
        )
    assert not any(bench.folder.iterdir())


DISTIL = """
  small:
    distil:
      teachers: ./bert
      student: {layers: 2}
      data: {path: read.jsonl, task: text}
      sampler: {batch_shuffle: {batch_size: 8}}
      loss: %s
  both:
    pair_encoders: {queries: $small, documents: %s}
"""


@pytest.fixture
def place(bert: Path, berts: list[Path], tmp_path: Path) -> Path:
    (tmp_path / "bert").symlink_to(bert)
    (tmp_path / "other").symlink_to(berts[0])
    rows = [json.dumps({"text": f"the {text} {i}"}) + "\n" for i in range(6) for text in TEXTS]
    (tmp_path / "read.jsonl").write_text("".join(rows))
    return tmp_path


def test_a_student_of_scores_is_refused(place: Path) -> None:
    assert "embedding_distillation" in _errors(
        place, DISTIL % ("similarity_distillation", "./bert")
    )
    assert not _errors(place, DISTIL % ("embedding_distillation", "./bert"))


@pytest.mark.parametrize(
    ("student", "documents"),
    [("layers: 2", "./bert"), ("layers: 2", "./other"), ("model: ./other", "./bert")],
)
def test_a_student_of_another_teacher_gets_a_warning(
    place: Path, student: str, documents: str
) -> None:
    """Wherever the student began: its space is that of its teacher, `./bert`."""
    plugins = load_plugins()
    text = "steps:\n" + DISTIL % ("embedding_distillation", documents)
    text = text.replace("layers: 2", student)
    recipe = parse_recipe(text, plugins, path=place / "recipe.yaml")
    results = run_recipe(recipe, place / "out", plugins, quiet=True)
    artifact = read_artifact(results["both"].path)
    assert [("space" in warning) for warning in artifact.warnings] == [True] * (
        documents == "./other"
    )
    assert artifact.details["routes"]["query"]["model"] == "small"
    both, small = _open(results["both"].path), _open(results["small"].path)
    assert _same(both.encode_query(TEXTS), small.encode_query(TEXTS))
    assert "encode_query" in (results["both"].path / "README.md").read_text()


def test_a_student_of_scores_is_refused_at_the_work_too(bert: Path, tmp_path: Path) -> None:
    bench = Bench(tmp_path / "run")
    details = {"distilled": {"learned": "scores", "space": None}}
    student = replace(model_at(bert), artifact=Artifact("model", details=details))
    bench.many = {"$small": [student]}
    step = PairEncoders(queries=ModelRef("$small"), documents=ModelRef(str(bert)))
    with pytest.raises(CheckpointError, match="embedding_distillation"):
        step.run(bench)


def test_the_whole_is_counted(bert: Path, tmp_path: Path) -> None:
    folder = _pair(bert, bert, tmp_path / "run")
    one, both = (count_parameters(Checkpoint(f)).total for f in (bert, folder))
    assert both == 2 * one


def test_the_check_announces_the_parameters_of_both(bert: Path, tmp_path: Path) -> None:
    wide = tiny.checkpoint(tmp_path / "wide", "bert", num_hidden_layers=5)
    glance = Glance()
    glance.plugins = load_plugins()
    step = PairEncoders(queries=ModelRef(str(bert)), documents=ModelRef(str(wide)))
    assert list(step.check(glance)) == []
    (expected,) = glance.expectations
    assert expected.parameters is not None
    first, second = (count_parameters(Checkpoint(folder)) for folder in (bert, wide))
    assert expected.parameters.total == first.total + second.total
    assert expected.parameters.active == first.active + second.active
    assert expected.parameters.computed == first.computed + second.computed

"""Sparse vectors, vectors of tokens and scores of pairs are scored as sentence-transformers compares them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import Backbone, DataError, DataRef, check_recipe, load_plugins, parse_recipe
from emberge_encoder import CrossEncoder, MultiVector, Splade, TextEncoder
from emberge_mteb import EvalEntry, Mteb
from sentence_transformers import CrossEncoder as StockCrossEncoder
from sentence_transformers import MultiVectorEncoder, SparseEncoder

from tests.support import tiny
from tests.support.bench import Bench, model_at, write_catalogue
from tests.support.json_files import edit

SEARCHED = ("retrieval", "reranking")


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_catalogue(tmp_path_factory.mktemp("sets"), (*SEARCHED, "sts", "clustering"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return tiny.kinds(tmp_path_factory.mktemp("models"))


def mteb(catalogue: Path, backbone: Backbone, *only: str, **options: Any) -> Mteb:
    entry = EvalEntry(path=DataRef(str(catalogue)), only=only or SEARCHED)
    return Mteb(data=(entry,), backbone=backbone, **options)


def scored(evaluator: Mteb, folder: Path, bench: Bench) -> dict[str, float]:
    scores = evaluator.evaluate(model_at(folder), evaluator.plan(bench), bench)
    return {score.task.name: score.score for score in scores}


def read(path: Path) -> Iterator[Any]:
    with gzip.open(path, "rt") as file:
        yield from (json.loads(line) for line in file)


def ndcg_of_twelve(scores: np.ndarray[Any, Any]) -> float:
    """nDCG@10 of twelve queries with one document each, by scores [queries, documents]."""
    places = [int((row > row[i]).sum()) for i, row in enumerate(scores)]
    return float(np.mean([1 / np.log2(place + 2) if place < 10 else 0.0 for place in places]))


def stock_scores(model: Any, queries: list[str], documents: list[str]) -> np.ndarray[Any, Any]:
    """The library's similarities [queries, documents]."""
    table = model.similarity(model.encode_query(queries), model.encode_document(documents))
    return np.asarray(table.to_dense() if table.is_sparse else table)


@pytest.mark.parametrize(
    ("name", "backbone", "stock"),
    [
        ("splade", Splade(prompts={"query": "the ", "document": "a "}), SparseEncoder),
        ("colbert", MultiVector(expansion=14), MultiVectorEncoder),
        ("colbert", MultiVector(prompts={"query": "the "}), MultiVectorEncoder),
    ],
)
def test_a_search_is_the_librarys(
    catalogue: Path,
    folders: Mapping[str, Path],
    tmp_path: Path,
    name: str,
    backbone: Backbone,
    stock: Any,
) -> None:
    evaluator = mteb(catalogue, backbone, token_budget=64)
    found = scored(evaluator, folders[name], Bench(tmp_path / "run"))
    backbone.load(folders[name], device="cpu", dtype="float32").save(tmp_path / "saved")
    model = stock(str(tmp_path / "saved"), device="cpu", local_files_only=True)
    sets = catalogue.parent / "eval"
    sides = {
        side: [row["text"] for row in read(sets / "retrieval" / f"{side}.jsonl.gz")]
        for side in ("queries", "corpus")
    }
    expected = ndcg_of_twelve(stock_scores(model, sides["queries"], sides["corpus"]))
    assert found["retrieval"] == pytest.approx(expected, rel=0, abs=5.01e-6)
    precisions = [
        reciprocal_place(stock_scores(model, [row["query"]], [*row["pos"], *row["neg"]])[0])
        for row in read(sets / "reranking" / "test.jsonl.gz")
    ]
    assert found["reranking"] == pytest.approx(float(np.mean(precisions)), rel=0, abs=5.01e-6)


def reciprocal_place(scores: np.ndarray[Any, Any]) -> float:
    """The average precision of the first text, the only right one."""
    return 1 / (1 + int((scores > scores[0]).sum()))


def test_a_reranker_alone_is_scored_where_a_task_gives_candidates(
    catalogue: Path, folders: Mapping[str, Path], tmp_path: Path
) -> None:
    evaluator = mteb(catalogue, CrossEncoder(), "reranking")
    found = scored(evaluator, folders["reranker"], Bench(tmp_path))
    model = StockCrossEncoder(str(folders["reranker"]), device="cpu", local_files_only=True)
    precisions = [
        reciprocal_place(model.predict([(row["query"], t) for t in (*row["pos"], *row["neg"])]))
        for row in read(catalogue.parent / "eval" / "reranking" / "test.jsonl.gz")
    ]
    assert found["reranking"] == pytest.approx(float(np.mean(precisions)), rel=0, abs=5.01e-6)


@pytest.mark.parametrize("name", ["splade", "colbert"])
def test_a_corpus_in_blocks_has_the_same_best_documents(
    catalogue: Path,
    folders: Mapping[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    evaluator = mteb(catalogue, MultiVector() if name == "colbert" else Splade(), token_budget=64)
    whole = scored(evaluator, folders[name], Bench(tmp_path / "whole"))
    monkeypatch.setattr("emberge_mteb.models._DOCUMENTS_AT_ONCE", 7)
    monkeypatch.setattr("emberge_mteb.models._BLOCK_TEXTS", 5)
    assert scored(evaluator, folders[name], Bench(tmp_path / "blocks")) == whole


def problems(
    catalogue: Path, model: str, backbone: Any, *only: str, severity: str = "error", **options: Any
) -> list[str]:
    evaluator = {
        "data": [{"path": str(catalogue), "only": list(only or SEARCHED)}],
        "backbone": backbone,
        **options,
    }
    recipe = {
        "steps": {"scores": {"evaluate": {"models": [model], "evaluators": {"mteb": evaluator}}}}
    }
    found = check_recipe(parse_recipe(recipe, plugins=load_plugins()), deep=False)
    return [one.message for one in found.problems if one.severity == severity]


def test_what_a_kind_cannot_be_scored_on_is_found_before_the_run(
    catalogue: Path, folders: Mapping[str, Path]
) -> None:
    splade, reranker = str(folders["splade"]), str(folders["reranker"])
    assert problems(catalogue, splade, "splade") == []
    (problem,) = problems(catalogue, splade, "splade", "retrieval", "sts", "clustering")
    assert problem.startswith(
        f"{splade}: gives sparse vectors over a vocabulary, and one vector a text is needed for sts, clust"
    )
    assert "take retrieval and reranking tasks" in problem
    (problem,) = problems(catalogue, reranker, "cross_encoder")
    assert problem.startswith(f"{reranker}: is a reranker")
    assert "cannot search (in retrieval); score it on reranking tasks" in problem
    assert problems(catalogue, reranker, "cross_encoder", "reranking") == []
    (problem,) = problems(catalogue, splade, "splade", dims=[8])
    assert "dims is about vectors of whole texts" in problem
    # Tasks that are known only in the run are refused there.
    with pytest.raises(DataError, match=r"^reranker: is a reranker"):
        scored(mteb(catalogue, CrossEncoder(), "retrieval"), folders["reranker"], Bench(catalogue))


@pytest.mark.parametrize(
    ("name", "backbone", "lacks"),
    [
        ("plain", "cross_encoder", "has no head with one output"),
        ("plain", "multi_vector", "has no linear layer for vectors of tokens"),
        ("splade", "text_encoder", "module 'SpladePooling'"),
        ("reranker", "text_encoder", "is a reranker"),
        ("colbert", "text_encoder", "that is a multi-vector model"),
    ],
)
def test_a_model_of_another_kind_is_not_scored_by_chance(
    catalogue: Path, folders: Mapping[str, Path], name: str, backbone: str, lacks: str
) -> None:
    (problem,) = problems(catalogue, str(folders[name]), backbone, "reranking")
    assert lacks in problem


def test_a_reranker_that_is_scored_as_an_embedder_is_named(catalogue: Path, tmp_path: Path) -> None:
    cls = "AutoModelForSequenceClassification"
    bare = tiny.transformer(tmp_path / "bare", cls, num_labels=1)
    backbone = {"text_encoder": {"pooling": "mean"}}
    assert problems(catalogue, str(bare), backbone) == []
    warnings = problems(catalogue, str(bare), backbone, severity="warning")
    bench = Bench(tmp_path)
    scored(mteb(catalogue, TextEncoder(pooling="mean"), "sts"), bare, bench)
    for told in (warnings, bench.warnings):
        assert sum("is a reranker" in text for text in told) == 1


def test_a_similarity_that_tasks_do_not_rank_by_is_the_cosine(
    catalogue: Path, tmp_path: Path
) -> None:
    folders = [tiny.checkpoint(tmp_path / name) for name in ("cosine", "manhattan")]
    edit(folders[1], "config_sentence_transformers.json", similarity_fn_name="manhattan")
    found = [
        scored(mteb(catalogue, TextEncoder()), folder, Bench(tmp_path / f"{folder.name}-run"))
        for folder in folders
    ]
    assert found[0] == found[1]

"""A folder with two encoders is scored as it serves: queries by the one, documents by the other."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import DataError, DataRef, check_recipe, load_plugins, parse_recipe
from emberge_mteb import EvalEntry, Mteb
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Router

from tests.support import tiny
from tests.support.bench import BACKBONE, Bench, model_at, write_catalogue

KINDS = ("retrieval", "reranking", "sts")


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_catalogue(tmp_path_factory.mktemp("sets"), KINDS)


def write_router(target: Path, queries: Path, documents: Path, prompts: dict[str, str]) -> None:
    """Write the library's folder of a model for queries and one for documents."""
    sides = [list(SentenceTransformer(str(side), device="cpu")) for side in (queries, documents)]
    router = Router.for_query_document(*sides, default_route="document")
    model = SentenceTransformer(modules=[router], device="cpu", prompts=prompts)
    model.save_pretrained(str(target))


@pytest.fixture
def folders(bert: Path, berts: list[Path], tmp_path: Path) -> tuple[Path, Path, Path]:
    """A model for queries, one for documents, and both in one folder."""
    both = tmp_path / "both"
    write_router(both, berts[0], bert, {"query": "find ", "document": "the "})
    return berts[0], bert, both


def mteb(catalogue: Path, **options: Any) -> Mteb:
    return Mteb(data=(EvalEntry(path=DataRef(str(catalogue))),), backbone=BACKBONE, **options)


def scored(evaluator: Mteb, folder: Path, bench: Bench) -> dict[str, float]:
    scores = evaluator.evaluate(model_at(folder), evaluator.plan(bench), bench)
    return {score.task.name: score.score for score in scores}


def by_hand(catalogue: Path, folder: Path) -> float:
    """nDCG@10 of twelve queries with one document each, by what the library's own two calls give."""
    model = SentenceTransformer(str(folder), device="cpu")
    sides: dict[str, list[str]] = {}
    for side in ("queries", "corpus"):
        with gzip.open(catalogue.parent / "eval" / "retrieval" / f"{side}.jsonl.gz", "rt") as file:
            sides[side] = [json.loads(line)["text"] for line in file]
    scores = model.encode_query(sides["queries"]) @ model.encode_document(sides["corpus"]).T
    places = [int((row > row[i]).sum()) for i, row in enumerate(scores)]
    return float(np.mean([1 / np.log2(place + 2) if place < 10 else 0.0 for place in places]))


def test_each_text_is_embedded_by_its_route(
    catalogue: Path, folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    queries, documents, both = folders
    evaluator = mteb(catalogue)
    found = scored(evaluator, both, Bench(tmp_path / "run"))
    assert found["retrieval"] == pytest.approx(by_hand(catalogue, both), rel=0, abs=5.01e-6)
    alone = [scored(evaluator, one, Bench(tmp_path / one.name)) for one in (queries, documents)]
    assert found["retrieval"] not in [scores["retrieval"] for scores in alone]
    # Without queries and documents, the library embeds by the default route, that of documents.
    assert found["sts"] == alone[1]["sts"] != alone[0]["sts"]


def test_a_router_without_a_default_has_no_vectors_of_other_tasks(
    catalogue: Path, folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    both = folders[-1]
    path = both / "router_config.json"
    config = json.loads(path.read_text())
    config["parameters"] |= {"default_route": None, "allow_empty_key": False}
    path.write_text(json.dumps(config))
    bench, evaluator = Bench(tmp_path / "run"), mteb(catalogue)
    tasks = {task.name: task for task in evaluator.plan(bench)}
    (score,) = evaluator.evaluate(model_at(both), [tasks["retrieval"]], bench)
    assert score.score == pytest.approx(by_hand(catalogue, both), rel=0, abs=5.01e-6)
    with pytest.raises(DataError, match="default_route"):
        list(evaluator.evaluate(model_at(both), [tasks["sts"]], bench))


def report(catalogue: Path, folder: Path, place: Path) -> Any:
    text = f"""
steps:
  scores:
    evaluate:
      models: ['{folder}']
      evaluators: {{mteb: {{data: {{path: '{catalogue}'}}}}}}
"""
    plugins = load_plugins()
    return check_recipe(parse_recipe(text, plugins, path=place / "recipe.yaml"), plugins)


def test_the_check_shows_who_embeds_what(
    catalogue: Path, folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    found = report(catalogue, folders[-1], tmp_path)
    assert not found.errors
    (note,) = [note for note in found.notes if note.title == "routes"]
    (line,) = note.lines
    assert "'query'" in line
    assert "sts, without queries and documents, by 'document'" in line


def test_routes_of_two_sizes_are_refused_before_the_work(
    catalogue: Path, bert: Path, tmp_path: Path
) -> None:
    narrow = tiny.checkpoint(tmp_path / "narrow", "bert", hidden_size=16)
    both = tmp_path / "both"
    write_router(both, narrow, bert, {})
    assert "16, 32" in "\n".join(map(str, report(catalogue, both, tmp_path).errors))


def test_a_backbone_that_reads_one_route_alone_is_told_so(
    folders: tuple[Path, Path, Path],
) -> None:
    queries, _, both = folders
    one = replace(BACKBONE, route="query")
    assert one.describe(both).dimension == BACKBONE.describe(queries).dimension

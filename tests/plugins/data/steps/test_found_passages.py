"""Negatives that sparse and multi-vector retrievers find, beside sentence-transformers' similarities."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge.cli.main import main
from emberge.encoding import BestDocuments, text_search
from emberge_encoder import MultiVector, Splade
from sentence_transformers import MultiVectorEncoder, SparseEncoder

from tests.support import tiny

ROWS, RANKS, COUNT, MARGIN = 40, (2, 9), 4, 0.99
KINDS: Mapping[str, tuple[Any, Any, Any]] = {
    "splade": (Splade(), "splade", SparseEncoder),
    "colbert": (
        MultiVector(expansion=14),
        {"multi_vector": {"expansion": 14}},
        MultiVectorEncoder,
    ),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return tiny.kinds(tmp_path_factory.mktemp("models"))


def sentences(count: int) -> list[str]:
    """Different texts; the second half have about the words of the first, so that some are found by them."""
    draw = random.Random(5)
    texts: dict[str, None] = {}
    while len(texts) < count // 2:
        texts[" ".join(draw.choices(tiny.WORDS, k=draw.randint(3, 9)))] = None
    asked = list(texts)
    return [*asked, *(f"{text} {draw.choice(tiny.WORDS)}" for text in asked)]


def recipe(folder: Path, teacher: Any, **options: Any) -> Path:
    texts = sentences(2 * ROWS)
    rows = [{"query": q, "pos": [p]} for q, p in zip(texts[:ROWS], texts[ROWS:], strict=True)]
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    step = {"data": {"path": str(data)}, "teacher": teacher, "count": COUNT, **options}
    path = folder / "recipe.yaml"
    path.write_text(
        json.dumps({"seed": 3, "steps": {"made": {"mine_hard_negatives": step}}}), "utf-8"
    )
    return path


def stock_scores(model: Any, queries: list[str], documents: list[str]) -> np.ndarray[Any, Any]:
    table = model.similarity(model.encode_query(queries), model.encode_document(documents))
    return np.asarray(table.to_dense() if table.is_sparse else table)


@pytest.mark.parametrize(
    ("name", "prompts"),
    [("splade", ("the ", "list of ")), ("colbert", ("", ""))],
)
def test_negatives_are_what_the_librarys_similarity_lists(
    folders: Mapping[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    prompts: tuple[str, str],
) -> None:
    backbone, option, stock = KINDS[name]
    monkeypatch.setattr(text_search, "_FEWEST", 7)  # several blocks of passages
    monkeypatch.setattr(text_search, "_SCORES", 7)
    teacher = {"model": str(folders[name]), "backbone": option}
    teacher |= dict(zip(("query_prompt", "document_prompt"), prompts, strict=True))
    path = recipe(tmp_path, teacher, range=list(RANKS), margin=MARGIN)
    assert main(["run", str(path), "--out", str(tmp_path / "out")]) == 0
    made = tmp_path / "out" / "made"
    (file,) = made.glob("*.jsonl")
    found = [json.loads(line) for line in file.read_text("utf-8").splitlines()]

    backbone.load(folders[name], device="cpu", dtype="float32").save(tmp_path / "saved")
    model = stock(str(tmp_path / "saved"), device="cpu", local_files_only=True)
    texts = sentences(2 * ROWS)
    queries, documents = texts[:ROWS], texts[ROWS:]
    scores = stock_scores(
        model, [prompts[0] + text for text in queries], [prompts[1] + text for text in documents]
    )
    reached = 0
    for number, row in enumerate(found):
        own = float(scores[number, number])
        others = [place for place in np.argsort(-scores[number], kind="stable") if place != number]
        first, last = RANKS
        reached += int((scores[number, others[:last]] > own).sum() < last)
        ceiling = own - (1 - MARGIN) * abs(own)
        passing = [place for place in others[first - 1 : last] if scores[number, place] <= ceiling]
        assert row["neg"] == [documents[place] for place in passing[:COUNT]], number
    assert 0 < reached < ROWS
    table = (made / "changes.md").read_text("utf-8")
    assert f"; {reached} queries have a positive among the first {RANKS[1]} passages." in table


def test_options_that_need_the_scores_of_any_pair_and_rerankers_are_refused(
    folders: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sparse = {"model": str(folders["splade"]), "backbone": "splade"}
    assert main(["check", str(recipe(tmp_path, sparse))]) == 2
    said = capsys.readouterr().err
    words = "sparse vectors over a vocabulary"
    assert f"a teacher with {words} lists so many passages of each query as range says" in said
    assert "range: [1, 40]" in said
    reranker = {"model": str(folders["reranker"]), "backbone": "cross_encoder"}
    assert main(["check", str(recipe(tmp_path, reranker, range=[1, 9]))]) == 2
    assert "CrossEncoder" in capsys.readouterr().err


def test_the_best_documents_of_blocks_are_those_of_all() -> None:
    scores = np.round(np.random.default_rng(0).normal(size=(5, 30)), 1).astype(np.float32)
    best = BestDocuments(5, 8)
    for first in range(0, 30, 7):
        best.add(scores[:, first : first + 7])
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :8]
    assert best.places.tolist() == expected.tolist()
    assert best.scores.tolist() == np.take_along_axis(scores, expected, 1).tolist()

"""Pairs of a folder in BEIR's layout: what its judgements call relevant, with titles in front."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from emberge import DataEntry, DataError, DataRef
from emberge.contracts import DataOrigin
from emberge.data import load_catalogue, load_datasets
from emberge_data import write_json_rows
from emberge_data.json_lines import JsonLines
from emberge_data.steps.beir_pairs_step import BeirPairs

from tests.support.bench import Bench
from tests.support.glance import Glance

CORPUS = [
    {"_id": "d0", "title": "Files", "text": "Call open."},
    {"_id": "d1", "title": "", "text": "Call sort."},
    {"_id": "d2", "text": "Nobody judged this."},
]
QUERIES = [{"_id": "q0", "text": "open a file"}, {"_id": "q1", "text": "sort a list"}]
TRAIN = "query-id\tcorpus-id\tscore\nq0\td0\t2\nq0\td1\t0\nq1\td1\t0\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "library"
    (folder / "qrels").mkdir(parents=True)
    write_json_rows(folder / "corpus.jsonl", CORPUS)
    write_json_rows(folder / "queries.jsonl", QUERIES)
    (folder / "qrels" / "train.tsv").write_text(TRAIN, "utf-8")
    return folder


def run(folder: Path, tmp_path: Path, **options: Any) -> list[Any]:
    bench = Bench(tmp_path / "run")
    BeirPairs(path=DataRef(str(folder)), **options).run(bench)
    (pairs,) = load_datasets(
        [DataEntry(path=DataRef(str(bench.folder)))],
        readers=[JsonLines()],
        resolve=lambda reference: Path(reference.text),
    )
    assert pairs.info.name == "library"
    assert pairs.info.task == "retrieval"
    return [pairs[row] for row in range(len(pairs))]


def test_relevant_documents_are_positives_and_judged_others_negatives(
    folder: Path, tmp_path: Path
) -> None:
    """q1 has no relevant document, and d2 no judgement."""
    origin = DataOrigin(licence="mit", url="https://acme.org")
    (example,) = run(folder, tmp_path, source=origin)
    (listed,) = load_catalogue(next(tmp_path.rglob("datasets.yaml"))).train
    assert listed.source == origin
    assert example.anchor == "open a file"
    assert list(example.positives) == ["Files Call open."]
    assert list(example.negatives) == ["Call sort."]


def test_judgements_without_a_relevant_document_are_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "qrels" / "train.tsv").write_text("q1\td1\t0\n", "utf-8")
    with pytest.raises(DataError, match="no query of its training judgements"):
        run(folder, tmp_path)


def test_a_check_names_missing_judgements(folder: Path) -> None:
    context = Glance()
    assert not [*BeirPairs(path=DataRef(str(folder))).check(context)]
    (folder / "qrels" / "train.tsv").unlink()
    (problem,) = BeirPairs(path=DataRef(str(folder))).check(context)
    assert "train" in problem.message

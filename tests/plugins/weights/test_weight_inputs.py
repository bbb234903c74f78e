"""Sets and members of a search: texts by side, prompts, what is thinned, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from emberge import DataError, DataRef, PerTensor, hash_evenly
from emberge.data import sample_rows
from emberge_data import JsonLines, RetrievalData
from emberge_weights.judged_sets import (
    JudgedSet,
    SetEntry,
    _limit_queries,
    read_sets,
    require_sets,
)
from emberge_weights.members import build_member_inputs, find_prompt

from tests.support.bench import model_at, write_rows


def write_catalogue(folder: Path) -> Path:
    """Write a catalogue with a set of each kind, all of few texts."""
    entries = [
        {"name": "asked", "task": "retrieval", "instruction": "Find it", "prompt": "Find: "},
        {"name": "near", "task": "sts"},
        {"name": "topics", "task": "clustering"},
    ]
    path = folder / "datasets.yaml"
    entries = [{**one, "dir": one["name"], "language": "en"} for one in entries]
    path.write_text(yaml.safe_dump({"format": 1, "eval": entries}))
    rows = [{"_id": f"d{i}", "title": "", "text": f"text {i}"} for i in range(9)]
    write_rows(folder / "asked" / "corpus.jsonl.gz", rows)
    asked = [{"_id": f"q{i}", "text": f"query {i}"} for i in range(3)]
    write_rows(folder / "asked" / "queries.jsonl.gz", asked)
    judged = "query-id\tcorpus-id\tscore\nq0\td1\t2\nq0\td3\t1\nq1\td0\t1\nq2\td8\t0\nq2\td2\t1\n"
    for name in ("qrels.tsv", "qrels_dev.tsv"):
        (folder / "asked" / name).write_text(judged)
    pairs = [
        {"query": f"x{i}", "pos": [f"y{i % 2}"], "pos_scores": [(0.25, 0.75)[i % 2]]}
        for i in range(3)
    ]
    for half in ("dev", "test"):
        write_rows(folder / "near" / f"{half}.jsonl.gz", pairs)
    return path


def read(folder: Path, **options: Any) -> list[JudgedSet]:
    entry = SetEntry(path=DataRef(str(write_catalogue(folder))), **options)
    return list(read_sets([entry], lambda ref: Path(ref.text), (JsonLines(),)))


ASKED = JudgedSet(
    name="asked-dev",
    statistic="mean",
    queries=[f"query {i}" for i in range(3)],
    documents=[f"text {i}" for i in range(9)],
    relevant=[{1: 2, 3: 1}, {0: 1}, {8: 0, 2: 1}],
)
NEAR = JudgedSet(
    name="near-dev",
    statistic="spearman",
    queries=["x0", "x1", "x2"],
    documents=["y0", "y1", "y0"],
    gold=[0.25, 0.75, 0.25],
)


def test_sets_have_queries_documents_and_judgements(tmp_path: Path) -> None:
    assert read(tmp_path, only=("asked", "near")) == [ASKED, NEAR]
    assert (ASKED.unit, NEAR.unit) == ("query", "pair")


def test_a_corpus_keeps_what_belongs_to_queries_and_as_many_others_in_its_order(
    tmp_path: Path,
) -> None:
    (some,) = read(tmp_path, only=("asked",), limit_documents=2)
    assert len(some.documents) == 7
    assert list(some.documents) == sorted(some.documents)
    assert {*some.documents} > {f"text {i}" for i in (0, 1, 2, 3, 8)}
    assert [[*map(some.documents.__getitem__, one)] for one in some.relevant] == [
        ["text 1", "text 3"],
        ["text 0"],
        ["text 8", "text 2"],
    ]
    (fewer,) = read(tmp_path, only=("asked",), limit_documents=1)
    assert {*fewer.documents} < {*some.documents}
    (one,) = read(tmp_path, only=("asked",), limit_queries=1)
    assert len(one.queries) == 1


def test_a_set_of_fewer_than_fifty_queries_is_refused() -> None:
    texts = [f"t{n}" for n in range(50)]
    require_sets([JudgedSet("enough", "mean", texts, texts)])
    with pytest.raises(DataError, match=r"'few' has 49 queries; .*take a set with 50 or more"):
        require_sets([JudgedSet("few", "mean", texts[:49], texts)])


# ── prompts ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("own", "one", "prompts"),
    [
        ({"query": "q", "document": "d", "passage": "p"}, ASKED, ("q", "d")),
        ({"passage": "p"}, ASKED, ("", "p")),
        ({"query": "q", "document": "d"}, NEAR, ("", "")),
    ],
)
def test_prompts_are_the_models_own(
    own: Mapping[str, str], one: JudgedSet, prompts: tuple[str, str]
) -> None:
    assert (find_prompt(own, one, "query"), find_prompt(own, one, "document")) == prompts


# ── members ─────────────────────────────────────────────────────────────────────────────────────


def test_members_without_weight_are_no_inputs_of_a_merge(bert: Path, berts: list[Path]) -> None:
    models = [model_at(folder) for folder in (bert, *berts)]
    found = build_member_inputs(models, [0.25, 0.0, 0.0, 1.5])
    assert [(one.name, one.folder, one.weight, one.fingerprint) for one in found] == [
        (f"{bert.name} (1)", bert, PerTensor(0.25), models[0].fingerprint),
        (f"{berts[2].name} (4)", berts[2], PerTensor(1.5), models[3].fingerprint),
    ]
    adapted = replace(models[0], adapter=bert)
    assert build_member_inputs([adapted], [1.0])[0].adapter == bert


def test_rows_are_a_set_with_further_documents(tmp_path: Path) -> None:
    path, documents = tmp_path / "own.jsonl.gz", tmp_path / "docs.jsonl.gz"
    write_rows(path, [{"query": "Q", "pos": "P", "neg": ["N"]}])
    write_rows(documents, [{"text": "D"}])
    entry = SetEntry(path=DataRef(str(path)), documents=DataRef(str(documents)))
    (one,) = read_sets([entry], lambda ref: Path(ref.text), (JsonLines(),))
    assert (one.name, one.queries, one.documents) == ("own-dev", ["Q"], ["D", "P", "N"])
    assert one.relevant == [{1: 1}]


def test_a_sample_of_queries_brings_their_documents_and_as_many_others() -> None:
    data = RetrievalData(
        {f"d{n}": f"text {n}" for n in range(40)},
        {f"q{n}": f"question {n}" for n in range(10)},
        {f"q{n}": {f"d{n}": 1} for n in range(10)},
    )
    found = _limit_queries(data, 4, "exam")
    assert isinstance(found, RetrievalData)
    assert list(found.queries) == [f"q{n}" for n in sample_rows(10, 4, "exam")]
    needed = {f"d{name[1:]}" for name in found.queries}
    others = sorted(data.corpus.keys() - needed, key=lambda name: hash_evenly("exam", name))
    assert found.corpus.keys() == needed.union(others[:4])

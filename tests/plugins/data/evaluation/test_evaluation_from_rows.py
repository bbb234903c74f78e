"""Evaluation sets from files of rows: how a row becomes a query, documents and judgements, and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from emberge import Columns, DataError, DataRef
from emberge.data import load_datasets
from emberge_data import (
    Delimited,
    EvalSource,
    JsonLines,
    RetrievalData,
    check_eval_sets,
    list_eval_texts,
    load_eval_set,
    pick_eval_sets,
)
from emberge_data.evaluation.read_eval_sets import explain_missing_part

from tests.support.glance import Glance

READERS = (Delimited(), JsonLines())
CSV = "question,answer\nWho rules?,The king\nWho serves?,The page\nWho rules?,A queen\n"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def write_rows(path: Path, *rows: Any) -> Path:
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


def source(path: Path, **options: Any) -> EvalSource:
    return EvalSource(path=DataRef(str(path)), **options)


def load(path: Path, split: Any = "test", **options: Any) -> Any:
    (eval_set,) = pick_eval_sets(source(path, **options), readers=READERS, split=split)
    return load_eval_set(eval_set, readers=READERS, split=split)


def look() -> Any:
    """A check of files that are all on this machine; it keeps the notes."""
    glance = Glance()
    glance.readers = READERS
    return glance


def faults_of(path: Path, **options: Any) -> list[str]:
    return check_eval_sets(look(), source(path, **options))[1]


def test_queries_are_distinct_anchors_and_positives_alone_are_relevant(tmp_path: Path) -> None:
    data = load(write(tmp_path / "heldout.csv", CSV))
    assert data == RetrievalData(
        corpus={"d0": "The king", "d1": "The page", "d2": "A queen"},
        queries={"q0": "Who rules?", "q1": "Who serves?"},
        relevant={"q0": {"d0": 1, "d2": 1}, "q1": {"d1": 1}},
    )
    row = {"query": "Q", "pos": ["P", "R"], "neg": ["N", "P"]}
    data = load(write_rows(tmp_path / "a.jsonl", row))
    assert list(data.corpus.values()) == ["P", "R", "N"]
    assert data.relevant == {"q0": {"d0": 1, "d1": 1}}


def test_the_set_is_named_after_the_file_and_in_domain(tmp_path: Path) -> None:
    path = write(tmp_path / "heldout.csv", CSV)
    (plain_set,) = pick_eval_sets(source(path), readers=READERS)
    assert (plain_set.name, plain_set.task, plain_set.domain) == ("heldout", "retrieval", "in")
    assert (plain_set.symmetric, plain_set.prompt) == (False, "")
    described = source(path, name="faq", domain="out", instruction="Find it.")
    (eval_set,) = pick_eval_sets(described, readers=READERS)
    assert (eval_set.name, eval_set.domain) == ("faq", "out")
    assert eval_set.prompt == "Instruct: Find it.\nQuery: "
    (eval_set,) = pick_eval_sets(
        source(path, instruction="Find it.", prompt="{instruction}! "), readers=READERS
    )
    assert eval_set.prompt == "Find it.! "


def test_columns_may_be_named_and_rows_have_no_parts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "ask,found,other\nQ,D,X\n")
    data = load(path, columns=Columns(anchor="ask", positive="found"))
    assert list(list_eval_texts(data)) == [("query", "Q"), ("document", "D")]
    with pytest.raises(DataError, match=r"a\.csv:2: no column for the anchor.*columns: \{anchor"):
        load(path)
    path = write(tmp_path / "a.csv", CSV)
    (eval_set,) = pick_eval_sets(source(path), readers=READERS)
    assert explain_missing_part(eval_set, "test", READERS) is None
    assert explain_missing_part(eval_set, "dev", READERS) is None
    assert load(path, "dev") == load(path, "test")
    path.unlink()
    assert str(path) in str(explain_missing_part(eval_set, "test", READERS))


def test_further_documents_are_searched_once_each(tmp_path: Path) -> None:
    path = write(tmp_path / "heldout.csv", CSV)
    documents = write_rows(
        tmp_path / "docs.jsonl",
        {"id": 7, "title": "Rule", "text": "The king"},
        {"id": 8, "text": "A tree"},
        {"id": 9, "text": "A tree"},
    )
    data = load(path, documents=DataRef(str(documents)))
    assert list(data.corpus.values()) == ["Rule The king", "A tree", "The page", "A queen"]
    assert data.relevant == {"q0": {"d0": 1, "d3": 1}, "q1": {"d2": 1}}


def test_positives_may_be_ids_of_documents(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "query,positive\nQ,7\nR,8\n")
    documents = write_rows(
        tmp_path / "docs.jsonl", {"_id": 7, "text": "Seven"}, {"_id": 8, "text": "Eight"}
    )
    data = load(path, documents=DataRef(str(documents)))
    assert data.corpus == {"d0": "Seven", "d1": "Eight"}
    assert data.relevant == {"q0": {"d0": 1}, "q1": {"d1": 1}}
    write(path, "query,positive\nQ,7\nR,70\n")
    with pytest.raises(DataError, match=r"a\.csv:3: there is no document '70' in .*docs\.jsonl"):
        load(path, documents=DataRef(str(documents)))


def test_documents_are_lines_or_a_table_or_those_of_a_steps_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "query,positive\nQ,D\n")
    folder = tmp_path / "docs"
    write(folder / "b.txt", "One\n\nTwo\n")
    write(folder / "c.csv", "content,note\nThree,x\n")
    write_rows(tmp_path / "step" / "0.jsonl", {"query": "P", "pos": ["Four"], "neg": ["Five"]})
    write(tmp_path / "step" / "datasets.yaml", "train: [{name: a, file: 0.jsonl}]\n")
    places = (folder / "b.txt", folder / "c.csv", tmp_path / "step")
    for place, texts in zip(places, (["One", "Two"], ["Three"], ["Four", "Five"]), strict=True):
        data = load(path, documents=DataRef(str(place)))
        assert list(data.corpus.values()) == [*texts, "D"]


@pytest.mark.parametrize(
    ("rows", "line", "message"),
    [
        ([{"id": "a", "text": "A"}, {"id": "a", "text": "B"}], ":2", "the id 'a' was given before"),
        ([{"id": "a", "words": "A"}], ":1", "the row needs a text, and a title is text (columns"),
        ([{"id": [1], "text": "A"}], ":1", "'id' is text or a whole number"),
        ([], "", "there are no documents"),
    ],
)
def test_a_document_that_cannot_be_searched_is_named_by_check_and_run(
    tmp_path: Path, rows: list[Any], line: str, message: str
) -> None:
    path = write(tmp_path / "a.csv", CSV)
    documents = write_rows(tmp_path / "docs.jsonl", *rows)
    with pytest.raises(DataError) as caught:
        load(path, documents=DataRef(str(documents)))
    assert f"docs.jsonl{line}: {message}" in str(caught.value)
    assert faults_of(path, documents=DataRef(str(documents))) == [str(caught.value)]


@pytest.mark.parametrize(
    ("text", "task"),
    [
        ("sentence1,sentence2,score\nA,B,0.5\n", "sts"),
        ("text,label\nA,x\n", "classification"),
        ("question,answer\nA,B\n", "retrieval"),
        ("question,answer,negative,score\nA,B,C,1\n", "retrieval"),
    ],
)
def test_the_columns_say_the_kind_of_task(tmp_path: Path, text: str, task: str) -> None:
    path = write(tmp_path / "a.csv", text)
    (eval_set,) = pick_eval_sets(source(path), readers=READERS)
    assert eval_set.task == task
    assert eval_set.symmetric == (task != "retrieval")
    (named_set,) = pick_eval_sets(source(path, task="clustering"), readers=READERS)
    assert named_set.task == "clustering"


def test_scores_are_scaled_and_classifiers_fitted_on_half_of_each_label(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "sentence1,sentence2,score\nA,B,0\nC,D,2\n")
    assert load(path, score_range=(0, 4)).scores == [0.0, 0.5]
    rows = [{"text": f"{label}{n}", "label": label} for label in "ab" for n in range(4)]
    data = load(write_rows(tmp_path / "a.jsonl", *rows, rows[0]))
    assert sorted(data.train_labels) == sorted(data.test_labels) == ["a", "a", "b", "b"]
    assert {*data.train_texts, *data.test_texts} == {row["text"] for row in rows}
    assert not {*data.train_texts} & {*data.test_texts}
    path = write(tmp_path / "a.csv", "text,label\nA,x\nB,x\nC,y\n")
    with pytest.raises(DataError, match=r"a\.csv: there is only one text of label 'y'"):
        load(path)


def test_a_folder_in_beirs_layout_is_a_set(tmp_path: Path) -> None:
    folder = tmp_path / "faq"
    write_rows(folder / "corpus.jsonl", {"_id": "d", "title": "T", "text": "D"})
    write_rows(folder / "queries.jsonl", {"_id": "q", "text": "Q"})
    write(folder / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore\nq\td\t1\n")
    (eval_set,) = pick_eval_sets(source(folder), readers=READERS)
    assert (eval_set.name, eval_set.task, eval_set.domain) == ("faq", "retrieval", "in")
    assert load(folder).relevant == {"q": {"d": 1}}
    assert faults_of(folder) == []
    (fault,) = faults_of(folder, documents=DataRef(str(folder)))
    assert "`documents` describes a file of rows" in fault
    (folder / "corpus.jsonl").unlink()
    assert "neither datasets.yaml nor corpus, queries and qrels" in faults_of(folder)[0]


PARTS = """
train: [{name: faq, file: faq.csv, task: retrieval}]
dev: [{name: faq, file: dev.csv, task: retrieval, instruction: Find it.}]
test:
- {name: faq, file: test.csv, task: retrieval, documents: docs.jsonl}
"""


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    write(tmp_path / "faq.csv", "query,positive\nTrain,T\n")
    write(tmp_path / "dev.csv", "query,positive\nDev,D\n")
    write(tmp_path / "test.csv", "query,positive\nTest,E\n")
    write_rows(tmp_path / "docs.jsonl", {"id": 1, "text": "More"})
    write(tmp_path / "datasets.yaml", PARTS)
    return tmp_path


def test_a_part_of_a_catalogue_is_read_by_its_name_also_for_training(parts: Path) -> None:
    assert list(list_eval_texts(load(parts, "dev"))) == [("query", "Dev"), ("document", "D")]
    assert list(list_eval_texts(load(parts))) == [
        *(("query", "Test"), ("document", "More"), ("document", "E"))
    ]
    (eval_set,) = pick_eval_sets(source(parts), readers=READERS, split="dev")
    assert (eval_set.name, eval_set.domain) == ("faq", "in")
    assert eval_set.prompt == "Instruct: Find it.\nQuery: "
    (eval_set,) = pick_eval_sets(source(parts, domain="out"), readers=READERS)
    assert eval_set.domain == "out"
    from emberge import DataEntry

    entry = DataEntry(path=DataRef(str(parts)), split="test")
    (dataset,) = load_datasets(
        [entry], store=parts / "store", readers=READERS, resolve=lambda ref: Path(ref.text)
    )
    assert dataset[0].anchor == "Test"


def test_a_part_that_is_missing_is_named_with_the_step_that_makes_it(parts: Path) -> None:
    write(parts / "datasets.yaml", PARTS.partition("dev:")[0])
    (fault,) = faults_of(parts)
    assert "no evaluation sets (`eval`) and no test sets (`test`); a step split makes them" in fault
    with pytest.raises(DataError, match="no development sets"):
        load(parts, "dev")
    (fault,) = faults_of(parts, only=("faqs",))
    assert "datasets.yaml" in fault


def test_labels_of_a_part_are_fitted_on_the_training_part(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", "text,label\nA,x\nB,y\n")
    write(tmp_path / "test.csv", "text,label\nC,x\nD,y\n")
    sets = "[{{name: a, file: {}.csv, task: classification}}]"
    write(
        tmp_path / "datasets.yaml", f"train: {sets.format('train')}\ntest: {sets.format('test')}\n"
    )
    data = load(tmp_path)
    assert (list(data.train_texts), list(data.test_texts)) == (["A", "B"], ["C", "D"])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("question,answer\nA,B\nC,\n", "a.csv:3: 'answer' is empty"),
        ("text\nA\n", "a.csv:1: single texts cannot be scored; add a column"),
        ("question\nA\n", "a.csv:2: no column for the positive"),
        ("question,answer\n", "a.csv: there are no rows"),
    ],
)
def test_rows_that_cannot_be_scored_are_named(tmp_path: Path, text: str, fault: str) -> None:
    path = write(tmp_path / "a.csv", text)
    assert fault in faults_of(path)[0]
    with pytest.raises(DataError) as caught:
        load(path)
    assert fault in str(caught.value)


def test_options_that_do_not_fit_are_named(tmp_path: Path, parts: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\nA,x\nB,x\n")
    assert "`only` picks sets of a catalogue" in faults_of(path, only=("a",))[0]
    (fault,) = faults_of(path, documents=DataRef(str(path)))
    assert "only retrieval searches `documents`" in fault
    (fault,) = faults_of(parts, columns=Columns(anchor="query"))
    assert "`columns` describes a file of rows, and this is a catalogue" in fault
    assert "there is no such file of rows" in faults_of(tmp_path / "gone.csv")[0]
    assert "no reader for this kind of file" in faults_of(write(tmp_path / "a.xls", ""))[0]


def test_check_shows_the_first_row_as_it_was_understood(tmp_path: Path) -> None:
    context = look()
    path = write(tmp_path / "heldout.csv", CSV)
    (eval_set,), faults = check_eval_sets(context, source(path))
    assert (eval_set.name, faults) == ("heldout", [])
    ((title, lines),) = context.notes.items()
    assert title == "evaluation: heldout: retrieval"
    assert lines[0] == "columns: anchor = question, positive = answer"
    assert lines[1] == "anchor: Who rules?"

"""Sets of the hub in other layouts: a folder each, documents by id, texts in records."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from emberge import Columns, DataEntry, DataError, DataRef
from emberge.data import (
    StoredDataset,
    check_entries,
    load_catalogue,
    load_datasets,
    write_json_rows,
)
from emberge_data import JsonLines

PAIRS = Columns(anchor="question", positive="pos_doc", negative="neg_doc")


def load(entry: DataEntry) -> StoredDataset:
    (dataset,) = load_datasets(
        [entry], readers=[JsonLines()], resolve=lambda ref: Path(ref.text).absolute()
    )
    return dataset


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub dataset with two folders, and with questions that name documents by id."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    place = tmp_path / "hub"
    for name in ("one", "two"):
        write_json_rows(place / name / "train.jsonl", [{"query": name, "pos": f"of {name}"}])
    questions = [
        {"question": "who", "pos_doc": [{"id": "d1"}], "neg_doc": [{"id": "d2"}, {"id": "d3"}]},
        {"question": "why", "pos_doc": [{"id": "d2"}], "neg_doc": [{"id": "d1"}]},
    ]
    write_json_rows(place / "asked" / "questions.jsonl", questions)
    texts = {"d1": "she", "d2": "because", "d3": "there", "d4": ""}
    documents = [{"id": key, "text": text} for key, text in texts.items()]
    write_json_rows(place / "asked" / "documents.jsonl", documents)
    write_json_rows(
        place / "asked" / "others.jsonl", [{**one, "text": "another"} for one in documents]
    )
    subsets = [
        {"config_name": "asked", "data_files": "asked/questions.jsonl"},
        {"config_name": "asked_corpus", "data_files": "asked/documents.jsonl"},
        {"config_name": "other_corpus", "data_files": "asked/others.jsonl"},
    ]
    (place / "README.md").write_text(f"---\nconfigs: {json.dumps(subsets)}\n---\n")
    return place


def test_a_folder_of_a_hub_dataset_is_a_set(hub: Path) -> None:
    for name in ("one", "two"):
        dataset = load(DataEntry(hub=str(hub), folder=name, name=name))
        assert [dataset[row].anchor for row in range(len(dataset))] == [name]


def test_documents_named_by_id_have_their_texts_and_decide_the_key(hub: Path) -> None:
    entry = DataEntry(hub=str(hub), subset="asked", documents="asked_corpus", columns=PAIRS)
    dataset = load(entry)
    assert [
        (dataset[row].anchor, dataset[row].positives, dataset[row].negatives) for row in (0, 1)
    ] == [("who", ("she",), ("because", "there")), ("why", ("because",), ("she",))]
    entry = DataEntry(hub=str(hub), subset="asked", documents="nowhere", columns=PAIRS)
    (head,) = check_entries([entry], readers=[], resolve=lambda _: None, network=True).heads
    assert (head.example.positives, len(head.example.negatives)) == (("d1",), 2)
    entry = DataEntry(hub=str(hub), subset="asked", documents="asked_corpus", columns=PAIRS)
    other = load(replace(entry, documents="other_corpus"))
    assert other[0].positives == ("another",)
    assert load(entry).fingerprint != other.fingerprint


@pytest.mark.parametrize(("wanted", "fault"), [("d4", "no text"), ("d9", "no document")])
def test_a_document_without_text_is_refused_with_its_id(wanted: str, fault: str, hub: Path) -> None:
    write_json_rows(hub / "asked" / "questions.jsonl", [{"question": "who", "pos_doc": [wanted]}])
    columns = Columns(anchor="question", positive="pos_doc")
    entry = DataEntry(hub=str(hub), subset="asked", documents="asked_corpus", columns=columns)
    with pytest.raises(DataError, match=f"asked_corpus.*{fault}.*'{wanted}'"):
        load(entry)


PAGES = [{"texts": ["title", "body"]}, {"texts": ["second title", "second body", "more"]}]
JOINED = {"task": "Find it.", "of": {"query": "tree"}, "pos": "Baum"}
BILINGUAL = {"translation": {"en": "tree", "de": "Baum"}}


@pytest.mark.parametrize(
    ("rows", "columns", "pairs"),
    [
        ([BILINGUAL], ("translation.en", "translation.de"), [("tree", "Baum")]),
        (PAGES, ("texts.0", "texts.1"), [("title", "body"), ("second title", "second body")]),
        ([JOINED], ("task+of.query", "pos"), [("Find it.\ntree", "Baum")]),
        ([{"of.query": "own", **JOINED}], ("of.query", "pos"), [("own", "Baum")]),
    ],
)
def test_a_column_may_be_a_part_of_another_or_several_joined(
    rows: list[Any], columns: tuple[str, str], pairs: list[Any], tmp_path: Path
) -> None:
    write_json_rows(tmp_path / "rows.jsonl", rows)
    named = Columns(anchor=columns[0], positive=columns[1])
    dataset = load(DataEntry(path=DataRef(str(tmp_path / "rows.jsonl")), columns=named))
    found = [dataset[row] for row in range(len(dataset))]
    assert [(one.anchor, *one.positives) for one in found] == pairs


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"texts": ["title"]}, "texts.1"),
        ({"texts": {"0": "tree"}}, "texts.fr"),
        ({"texts": ["title"]}, "texts.0+task"),
    ],
)
def test_a_part_that_a_row_lacks_is_named(row: Any, column: str, tmp_path: Path) -> None:
    write_json_rows(tmp_path / "rows.jsonl", [row])
    columns = Columns(anchor="texts.0", positive=column)
    entry = DataEntry(path=DataRef(str(tmp_path / "rows.jsonl")), columns=columns)
    with pytest.raises(DataError, match=re.escape(column)):
        load(entry)


def test_a_catalogue_names_folders_and_documents_but_no_folder_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "datasets.yaml").write_text(
        "train:\n"
        "- {name: one, hub: o/n, folder: one}\n"
        "- {name: asked, hub: o/n, subset: asked, documents: asked_corpus}\n"
    )
    one, asked = load_catalogue(tmp_path).train
    assert (one.folder, asked.documents) == ("one", "asked_corpus")
    write_json_rows(tmp_path / "rows.jsonl", [{"query": "a", "pos": "b"}])
    with pytest.raises(DataError, match="`folder`"):
        load(DataEntry(path=DataRef(str(tmp_path / "rows.jsonl")), folder="one"))

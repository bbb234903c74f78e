"""Datasets of the hub: splits, layouts of their rows, an unreachable hub, and rows as they are needed."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emberge import Columns, DataEntry, DataError, DataRef, Example
from emberge.data import StoredDataset, check_entries, hub_datasets, load_datasets
from emberge_data import JsonLines, write_json_rows

from tests.support.fixture_types import Patch

PAIRS = Columns(anchor="question", positive="pos_doc", negative="neg_doc")


def load(entry: DataEntry) -> StoredDataset:
    (dataset,) = load_datasets(
        [entry], readers=[JsonLines()], resolve=lambda ref: Path(ref.text).absolute()
    )
    return dataset


def check(entry: DataEntry, *, network: bool = True) -> Any:
    return check_entries([entry], readers=[], resolve=lambda _: None, network=network)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A hub dataset with two folders, and with questions that name documents by id."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    place = tmp_path / "hub"
    for name in ("one", "two"):
        write_json_rows(place / name / "train.jsonl", [{"query": name, "pos": f"of {name}"}])
        write_json_rows(place / name / "test.jsonl", [{"query": "t", "pos": "p"}] * 2)
    questions = [
        {"question": "who", "pos_doc": [{"id": "d1"}], "neg_doc": [{"id": "d2"}, {"id": "d3"}]},
        {"question": "why", "pos_doc": [{"id": "d2"}], "neg_doc": [{"id": "d1"}]},
    ]
    write_json_rows(place / "asked" / "questions.jsonl", questions)
    texts = {"d1": "she", "d2": "because", "d3": "there", "d4": ""}
    documents = [{"id": key, "text": text} for key, text in texts.items()]
    write_json_rows(place / "asked" / "documents.jsonl", documents)
    others = [{**one, "text": "another"} for one in documents]
    write_json_rows(place / "asked" / "others.jsonl", others)
    subsets = [
        {"config_name": "asked", "data_files": "asked/questions.jsonl"},
        {"config_name": "asked_corpus", "data_files": "asked/documents.jsonl"},
        {"config_name": "other_corpus", "data_files": "asked/others.jsonl"},
    ]
    (place / "README.md").write_text(f"---\nconfigs: {json.dumps(subsets)}\n---\n")
    return place


def test_splits_are_read_through_the_library_and_checked_with_leave_to_use_the_network(
    hub: Path,
) -> None:
    entry = DataEntry(hub=str(hub), folder="one")
    dataset = load(entry)
    assert (dataset.info.name, dataset[0]) == ("hub", Example("one", ("of one",)))
    assert load(entry).fingerprint == dataset.fingerprint
    assert len(load(replace(entry, split="test"))) == 2
    with pytest.raises(DataError, match=r"hub/one\[dev\] cannot be loaded: .*correct hub"):
        load(replace(entry, split="dev"))
    (problem,) = check(entry, network=False).problems
    assert (problem.severity, problem.message) == (
        "unseen",
        f"dataset {hub}/one[train] was not looked at",
    )
    assert check(entry).first_rows[0].example == dataset[0]


def test_a_hub_that_cannot_be_reached_is_unseen_in_a_check_and_an_error_in_a_run(
    monkeypatch: Patch, tmp_path: Path
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    entry = DataEntry(hub="acme/never-downloaded")
    with pytest.raises(DataError, match="acme/never-downloaded"):
        load(entry)
    (problem,) = check(entry).problems
    assert problem.severity == "unseen"
    assert "cannot be reached" in problem.message


def test_documents_named_by_id_have_their_texts_and_decide_the_key(hub: Path) -> None:
    entry = DataEntry(hub=str(hub), subset="asked", documents="asked_corpus", columns=PAIRS)
    dataset = load(entry)
    assert [
        (dataset[row].anchor, dataset[row].positives, dataset[row].negatives) for row in (0, 1)
    ] == [("who", ("she",), ("because", "there")), ("why", ("because",), ("she",))]
    entry = DataEntry(hub=str(hub), subset="asked", documents="nowhere", columns=PAIRS)
    (head,) = check(entry).first_rows
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
    ("row", "column"), [({"texts": ["title"]}, "texts.1"), ({"texts": ["title"]}, "texts.0+task")]
)
def test_a_part_that_a_row_lacks_is_named(row: Any, column: str, tmp_path: Path) -> None:
    write_json_rows(tmp_path / "rows.jsonl", [row])
    columns = Columns(anchor="texts.0", positive=column)
    entry = DataEntry(path=DataRef(str(tmp_path / "rows.jsonl")), columns=columns)
    with pytest.raises(DataError, match=re.escape(column)):
        load(entry)


def test_the_key_of_a_hub_sets_first_rows_needs_no_rows(monkeypatch: Patch) -> None:
    import datasets

    asked: list[Any] = []

    def build(*words: Any, **options: Any) -> SimpleNamespace:
        asked.append((words, options))
        return SimpleNamespace(config_id="small-x", hash="12ab")

    class Stream(list[Any]):
        features, _fingerprint = None, "34cd"

    def load(*words: Any, **options: Any) -> Stream:
        asked.append((words, options))
        return Stream([{"text": "a"}])

    monkeypatch.setattr(datasets, "load_dataset_builder", build)
    monkeypatch.setattr(datasets, "load_dataset", load)
    entry = DataEntry(hub="o/n", subset="small", split="dev", revision="v1")
    assert hub_datasets.hash_hub_rows(dataclasses.replace(entry, first=5)) == "small-x/12ab[dev]"
    assert hub_datasets.hash_hub_rows(entry) == "34cd"
    whole = {"data_dir": None, "split": "dev", "revision": "v1", "streaming": False}
    head = {"data_dir": None, "revision": "v1"}
    assert asked == [(("o/n", "small"), head), (("o/n", "small"), whole)]
    for streamed in (
        {"entry": dataclasses.replace(entry, first=5)},
        {"entry": entry, "head": True},
    ):
        assert list(hub_datasets.read_hub_rows(**streamed)) == [(1, {"text": "a"})]
        assert asked[-1][1]["streaming"] is True
    assert hub_datasets.describe_hub_entry(entry) == "o/n/small[dev]@v1"
    assert hub_datasets.describe_hub_entry(DataEntry(hub="o/n")) == "o/n[train]"

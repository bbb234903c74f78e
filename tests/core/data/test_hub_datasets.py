"""Datasets of the hub: splits, layouts of their rows, an unreachable hub, and rows as they are needed."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emberge import Columns, DataEntry, DataError, DataRef, Example
from emberge.data import StoredDataset, check_entries, hub_datasets, load_datasets
from emberge_data import JsonLines, write_json_rows

from tests.support.fixture_types import Patch
from tests.support.loopback_hub import COMMITS, serving

PAIRS = Columns(anchor="question", positive="pos_doc", negative="neg_doc")
SHARDS = [f"train-{number:05d}-of-00003.parquet" for number in range(3)]
ROWS = 1000  # of a shard

_LOAD = """
import json, sys
from pathlib import Path
from emberge import DataEntry
from emberge.data import load_datasets
store, entries = Path(sys.argv[1]), json.loads(sys.argv[2])
found = load_datasets([DataEntry(**e) for e in entries], readers=(), resolve=None, store=store)
print(json.dumps([[len(d), d[len(d) - 1].anchor, d.fingerprint] for d in found]))
"""


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
    assert check(entry).heads[0].example == dataset[0]


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
    (head,) = check(entry).heads
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


def test_the_key_of_a_hub_sets_first_rows_needs_no_rows(monkeypatch: Patch) -> None:
    import datasets

    asked: list[Any] = []

    def build(*words: Any, **options: Any) -> SimpleNamespace:
        asked.append((words, options))
        return SimpleNamespace(config_id="small-x", hash="12ab")

    def load(*words: Any, **options: Any) -> SimpleNamespace:
        asked.append((words, options))
        return SimpleNamespace(features=None, _fingerprint="34cd")

    monkeypatch.setattr(datasets, "load_dataset_builder", build)
    monkeypatch.setattr(datasets, "load_dataset", load)
    entry = DataEntry(hub="o/n", subset="small", split="dev", revision="v1")
    assert hub_datasets.hash_hub_rows(dataclasses.replace(entry, first=5)) == "small-x/12ab[dev]"
    assert hub_datasets.hash_hub_rows(entry) == "34cd"
    whole = {"data_dir": None, "split": "dev", "revision": "v1", "streaming": False}
    head = {"data_dir": None, "revision": "v1"}
    assert asked == [(("o/n", "small"), head), (("o/n", "small"), whole)]
    assert hub_datasets.describe_hub_entry(entry) == "o/n/small[dev]@v1"
    assert hub_datasets.describe_hub_entry(DataEntry(hub="o/n")) == "o/n[train]"


@pytest.mark.slow
def test_shards_of_a_hub_dataset_that_are_not_needed_are_not_downloaded(tmp_path: Path) -> None:
    """1200 rows are one shard and a part of the next; a second load finds them and asks for no shard."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    folder = tmp_path / "hub/datasets/owner/texts/main"
    folder.mkdir(parents=True)
    for number, name in enumerate(SHARDS):
        texts = pa.table({"text": [f"text {number * ROWS + row} " * 9 for row in range(ROWS)]})
        parquet.write_table(texts, folder / name, row_group_size=100)
    whole = sum(path.stat().st_size for path in folder.iterdir())
    with serving(tmp_path / "hub") as hub:

        def load(**options: Any) -> list[Any]:
            entry = {"hub": "owner/texts", "revision": COMMITS["main"], **options}
            hub.fetched.clear()
            hub.sent.clear()
            return list(_asked(tmp_path, hub.url, [entry])[0])

        rows, last, fingerprint = load(first=ROWS + 200)
        assert (rows, last.split()[:2]) == (ROWS + 200, ["text", str(ROWS + 199)])
        assert set(hub.fetched) == set(SHARDS[:2])
        assert load(first=ROWS + 200) == [rows, last, fingerprint]
        assert hub.fetched == []
        assert load(first=10)[0] == 10
        assert set(hub.fetched) == {SHARDS[0]}
        assert sum(hub.sent.values()) < whole


def _asked(root: Path, url: str, entries: list[dict[str, Any]]) -> list[list[Any]]:
    """Load in a process of its own, as the hub's clients read their settings once."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": url,
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(root / "home"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(root / "store"), json.dumps(entries)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[list[Any]] = json.loads(done.stdout)
    return found

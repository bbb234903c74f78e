"""Files of rows from outside: regular files, bounded rows, and values that are what they should be."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from emberge import BadRow, DataEntry, DataError, DataRef
from emberge.data import check_entries, load_datasets
from emberge_data import Delimited, EvalSet, JsonLines, Parquet, load_eval_set
from pyarrow import parquet as arrow

READERS = [JsonLines(), Parquet(), Delimited()]


def entry(path: Path, **options: Any) -> DataEntry:
    return DataEntry(path=DataRef(str(path)), **options)


def resolve(reference: DataRef) -> Path:
    return Path(reference.text)


def load(path: Path, store: Path | None = None, **options: Any) -> Any:
    return load_datasets([entry(path, **options)], readers=READERS, resolve=resolve, store=store)[0]


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        load(path, **options)
    return str(caught.value)


def json_file(folder: Path, *rows: Any, name: str = "rows.jsonl") -> Path:
    """A file of rows, those that are bytes as they are."""
    path = folder / name
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def faults(reader: Any, path: Path) -> list[tuple[int, str]]:
    return [(number, row.message) for number, row in reader.rows(path) if isinstance(row, BadRow)]


# What is read at all.


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a.jsonl", os.mkfifo),
        ("a.tsv.gz", Path.mkdir),
        ("a.parquet", lambda path: path.symlink_to("/dev/zero")),
    ],
)
def test_readers_take_regular_files_alone(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    path = tmp_path / name
    make(path)
    reader = next(reader for reader in READERS if path.name.endswith(reader.suffixes))
    with pytest.raises(DataError, match=f"{name}: not a regular file; give a file"):
        list(reader.rows(path))


def test_a_quote_that_is_not_closed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('query,pos\na,b\n"open,' + "a\n" * 600)
    assert next(Delimited().rows(path)) == (2, {"query": "a", "pos": "b"})
    ((_, message),) = faults(Delimited(), path)
    assert "quotes are closed" in message


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("query,pos,pos\na,b,c\n")
    assert "a.csv:1: two columns are named 'pos'; rename or remove one" in refusal(path)


def test_a_value_of_parquet_that_cannot_be_read_is_a_row_of_its_own(tmp_path: Path) -> None:
    broken = pa.array([b"a", b"\xff\xfe", b"c"]).view(pa.string())
    arrow.write_table(pa.table({"text": broken}), tmp_path / "a.parquet")
    rows = list(Parquet().rows(tmp_path / "a.parquet"))
    assert [number for number, _ in rows] == [1, 2, 3]
    assert rows[2][1] == {"text": "c"}
    assert "a.parquet:2: a value cannot be read" in refusal(tmp_path / "a.parquet")


# Values.


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("text", None, "null"),
        ("text", " \n\t", "empty"),
        ("query", True, "true or false"),
        ("query", ["a"], "a list"),
        ("pos", ["b", 5], "a number"),
        ("neg", ["b", {}], "not an object"),
    ],
)
def test_a_text_is_text(tmp_path: Path, value: Any, words: str, column: str) -> None:
    good = {"text": "a"} if column == "text" else {"query": "a", "pos": ["b"], "neg": ["c"]}
    path = json_file(tmp_path, good, {**good, column: value})
    message = refusal(path)
    assert "rows.jsonl:2: " in message
    assert words in message
    found = check_entries([entry(path)], readers=READERS, resolve=resolve).problems
    assert [problem.where for problem in found] == [f"{path}:2"]


def test_missing_values_of_pandas_are_no_text(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame({"query": ["a", "b"], "pos": ["c", float("nan")]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    assert "a.csv:3: 'pos' is empty" in refusal(tmp_path / "a.csv")
    assert "a.parquet:2: 'pos' is empty" in refusal(tmp_path / "a.parquet")


@pytest.mark.parametrize("score", ["NaN", "-Infinity", "1e999", '"nan"', "true", "[]"])
def test_scores_are_finite_numbers(tmp_path: Path, score: str) -> None:
    rows = [f'{{"query": "a", "pos": ["b"], "pos_scores": [{one}]}}' for one in ("0.5", score)]
    path = json_file(tmp_path, *(row.encode() for row in rows))
    assert "rows.jsonl:2: " in refusal(path)


@pytest.mark.parametrize("half", ["\\ud800", "\\udc00\\ud800"])
def test_half_a_surrogate_pair_is_no_text(tmp_path: Path, half: str) -> None:
    path = json_file(tmp_path, {"text": "a"}, b'{"text": "a' + half.encode() + b'b"}')
    assert "rows.jsonl:2: the line has '\\ud" in (message := refusal(path))
    assert "half a surrogate pair" in message
    assert load(json_file(tmp_path, {"text": "🦆"}))[0].anchor == "🦆"


@pytest.mark.parametrize("text", [5, ["a"]])
def test_the_text_beside_a_medium_is_text(tmp_path: Path, text: Any) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    row = {"query": "a", "pos": {"parts": [{"text": text, "image": "a.png"}, "c"]}}
    message = refusal(json_file(tmp_path, row))
    assert "rows.jsonl:1: " in message
    assert ("as text of a part" in message) == (text is not None)


def test_parts_within_parts_are_refused(tmp_path: Path) -> None:
    value: Any = ["a"]
    for _ in range(200):
        value = [{"parts": value}]
    message = refusal(json_file(tmp_path, {"query": {"parts": value}, "pos": "b"}))
    assert "rows.jsonl:1: 'query' has parts within parts" in message


@pytest.mark.parametrize("label", [float("nan"), 1.5, ["a"], " "])
def test_labels_are_words_or_whole_numbers(tmp_path: Path, label: Any) -> None:
    path = json_file(tmp_path, {"text": "a", "label": "b"}, {"text": "a", "label": label})
    assert "rows.jsonl:2: 'label'" in refusal(path)


# Evaluation sets.


def retrieval(
    folder: Path,
    qrels: str | bytes = "q1\td1\t1\n",
    queries: Sequence[Mapping[str, Any]] = ({"_id": "q1", "text": "a"},),
    corpus: Sequence[Mapping[str, Any]] = ({"_id": "d1", "text": "b"},),
) -> Any:
    json_file(folder, *queries, name="queries.jsonl")
    json_file(folder, *corpus, name="corpus.jsonl")
    (folder / "qrels.tsv").write_bytes(qrels.encode() if isinstance(qrels, str) else qrels)
    one = EvalSet(name="a", folder=folder, task="retrieval")
    return load_eval_set(one, readers=READERS)


@pytest.mark.parametrize("score", ["nan", "0.5", "1" * 5000, "²"])
def test_judgements_are_named_by_their_line(tmp_path: Path, score: str) -> None:
    with pytest.raises(DataError, match=r"qrels\.tsv:3: .*whole number"):
        retrieval(tmp_path, f"query\tdoc\tscore\nq1\td1\t1\nq1\td1\t{score}\n")


def test_a_damaged_file_of_judgements_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"qrels\.tsv:2: the line is "):
        retrieval(tmp_path, b"q1\td1\t1\n\xff\n")


@pytest.mark.parametrize("name", [None, True, 1.5, ["a"]])
def test_ids_are_words_or_whole_numbers(tmp_path: Path, name: Any) -> None:
    with pytest.raises(DataError, match=r"corpus\.jsonl:2: .*_id"):
        retrieval(tmp_path, corpus=[{"_id": "d1", "text": "a"}, {"_id": name, "text": "b"}])

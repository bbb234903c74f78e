"""Readers: rows with their numbers, streamed; rows that cannot be read are told and passed over."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from emberge import BadRow, DataError, Reader
from emberge_data.delimited import Delimited
from emberge_data.json_lines import JsonLines
from emberge_data.parquet import Parquet

ROWS = [{"query": "täglich 🦆", "pos": ["a", "b"]}, {"query": "q", "pos": ["c"]}]


def read(reader: Reader, path: Path) -> list[tuple[int, Any]]:
    return list(reader.rows(path))


def faults(reader: Reader, path: Path) -> list[tuple[int, str]]:
    return [(line, row.message) for line, row in reader.rows(path) if isinstance(row, BadRow)]


@pytest.mark.parametrize(
    ("name", "mark"), [("A.TSV", "\t"), ("a.tsv.gz", "\t"), ("a.tsv.csv", ",")]
)
def test_the_ending_decides_the_delimiter(tmp_path: Path, name: str, mark: str) -> None:
    content = f'a{mark}b\n1{mark}\n"two\nlines{mark}"{mark}0.5\n'.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert read(Delimited(), tmp_path / name) == [
        (2, {"a": "1", "b": None}),
        (4, {"a": f"two\nlines{mark}", "b": "0.5"}),
    ]


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_the_heading_of_a_csv_file_decides_its_delimiter(tmp_path: Path, mark: str) -> None:
    """A comma within quotes is no delimiter, and one in a cell below the heading is neither."""
    path = tmp_path / "a.csv"
    path.write_text(f'"a, b, c"{mark}d{mark}e\nx, y{mark}z{mark}\n', "utf-8")
    assert read(Delimited(), path) == [(2, {"a, b, c": "x, y", "d": "z", "e": None})]
    if mark == ";":  # a comma outside of quotes is before it
        path.write_text("a;b,c\n1;2,3\n", "utf-8")
        assert read(Delimited(), path) == [(2, {"a;b": "1;2", "c": "3"})]


@pytest.mark.parametrize("name", ["a.ndjson", "a.json", "A.JSONL.GZ"])
def test_json_lines_are_read_plain_and_compressed(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    raw = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()
    path.write_bytes(gzip.compress(raw) if name.lower().endswith("gz") else raw)
    assert read(JsonLines(), path) == [(1, ROWS[0]), (2, ROWS[1])]
    assert path.name.lower().endswith(JsonLines.suffixes)


def test_empty_lines_count_and_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n   \n{"a": 2}')
    assert read(JsonLines(), path) == [(1, {"a": 1}), (4, {"a": 2})]


def test_bad_lines_are_told_and_the_next_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": }\n[1]\n"x"\n\xff\xfe\n' + b"[" * 100_000 + b'\n{"a": 1}\n')
    rows = read(JsonLines(), path)
    assert rows[-1] == (6, {"a": 1})
    assert next(iter(JsonLines().rows(path)))[0] == 1, "they are streamed"
    told = faults(JsonLines(), path)
    assert [line for line, _ in told] == [1, 2, 3, 4, 5]
    assert told[0][1].startswith("not JSON: Expecting value at column")
    assert "not a list" in told[1][1]
    assert "not a str" in told[2][1]
    assert "UTF-8" in told[3][1]
    assert "recursion depth" in told[4][1]


def test_a_document_over_many_lines_is_told_how_to_become_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ROWS, indent=1))
    ((_, message),) = faults(JsonLines(), path)
    assert "jq -c '.[]'" in message
    path.write_text('{"a": "\n')
    assert "starting at column 7; correct the line" in faults(JsonLines(), path)[0][1]


def test_a_file_with_the_ending_of_another_format_is_told_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("query,document\na,b\nc,d\n")
    ((_, message),) = faults(JsonLines(), tmp_path / "a.jsonl")
    assert message.endswith("looks like CSV; rename the file to .csv")
    (tmp_path / "a.csv").write_text('{"query":"a","document":"b"}\n')
    with pytest.raises(DataError, match=r"looks like JSON; rename the file to \.jsonl"):
        read(Delimited(), tmp_path / "a.csv")


@pytest.mark.parametrize("keep", [0.2, 0.9])
def test_truncated_gzip_ends_with_a_bad_row(tmp_path: Path, keep: float) -> None:
    whole: list[tuple[str, Reader, str]] = [
        ("a.jsonl.gz", JsonLines(), '{{"a": {}}}\n'),
        ("a.csv.gz", Delimited(), "{},-{}1\n"),
    ]
    for number, (name, reader, line) in enumerate(whole, 1):
        packed = gzip.compress("".join(line.format(i, i) for i in range(5000)).encode())
        (tmp_path / name).write_bytes(packed[: int(len(packed) * keep)])
        rows = read(reader, tmp_path / name)
        assert isinstance(rows[-1][1], BadRow)
        assert "damaged" in rows[-1][1].message
        assert [line for line, _ in rows] == list(range(number, len(rows) + number))
    path = tmp_path / "no.jsonl.gz"
    path.write_text('{"a": 1}\n')
    assert "damaged" in faults(JsonLines(), path)[0][1]


def test_parquet_is_read_in_batches(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    table = pa.table({"query": [f"q{i}" for i in range(3000)], "pos": [["a", "b"]] * 3000})
    parquet.write_table(table, path)
    rows = read(Parquet(), path)
    assert [number for number, _ in rows] == list(range(1, 3001))
    assert rows[2999][1] == {"query": "q2999", "pos": ["a", "b"]}
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match=r"a\.parquet: not a readable Parquet file"):
        read(Parquet(), path)


def test_a_table_row_of_another_width_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2,3\n1,2\n1\n")
    assert faults(Delimited(), path) == [
        (2, "3 cells under 2 headings; quote cells that contain the delimiter"),
        (4, "1 cell under 2 headings; complete or remove it"),
    ]
    assert read(Delimited(), path)[1] == (3, {"a": "1", "b": "2"})


def test_a_table_that_is_no_utf_8_or_no_table_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\n\xff,2\n")
    ((line, message),) = faults(Delimited(), path)
    assert (line, "UTF-8" in message) == (2, True)
    for text in ('a,b\n1,2\n"open,2\n3,4\n', 'a,b\n1,2\n3,"4"5\n1,2\n'):
        path.write_text(text)
        ((line, message),) = faults(Delimited(), path)
        assert (line, "cannot be read" in message) == (3, True)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_end_of_a_line_ends_a_row(tmp_path: Path, end: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(end.join(["\ufeffa,b", '"1', '2",ä', "3,4", ""]).encode())
    assert read(Delimited(), path) == [(3, {"a": f"1{end}2", "b": "ä"}), (4, {"a": "3", "b": "4"})]

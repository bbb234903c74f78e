"""Rows of one file with all their columns: their sample, their problems, files in place of bytes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from emberge import DataEntry, DataError, DataRef
from emberge.contracts import has_media
from emberge.data import sample_rows
from emberge_data import JsonLines, Parquet
from emberge_fine_tuned.task_rows import PlainRows, read_plain_rows

from tests.support.media_models import drawing


def read(path: Path, store: Path | None = None, limit: int | None = None) -> PlainRows:
    entry = DataEntry(path=DataRef(str(path)), limit=limit)
    readers = (JsonLines(), Parquet())
    found = read_plain_rows(entry, readers=readers, resolve=lambda _: path, store=store)
    assert found is not None
    return found


def test_plain_rows_are_a_sample_of_those_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps({"N": n}) + "\n" for n in range(20)))
    found = read(path, limit=8)
    assert [(number, row["n"]) for number, row in found.rows] == [
        (row + 1, row) for row in sample_rows(20, 8, "c")
    ]
    assert len(found.content_hash) == 32
    entry = DataEntry(path=DataRef(str(path)))
    assert read_plain_rows(entry, readers=(), resolve=lambda _: None) is None
    (tmp_path / "datasets.yaml").write_text(
        "train: [{name: a, file: c.jsonl}, {name: b, file: c.jsonl}]"
    )
    with pytest.raises(DataError, match="not a catalogue of several"):
        read(tmp_path)


def test_one_fault_of_plain_rows_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("x\n" * 21 + '{"a": 1,\n')
    with pytest.raises(DataError) as caught:
        read(path)
    first, second = str(caught.value).splitlines()
    assert f"{path}:1: " in first
    assert "(21 rows: 1, 2, 3, 4, 5, …)" in first
    assert f"{path}:22: " in second
    assert "at column 9" in second  # behind the comma, where the line ends


def test_plain_rows_have_files_in_place_of_bytes(tmp_path: Path) -> None:
    """So that the rows of a large data set fit the memory; equal bytes are one file."""
    buffers = [io.BytesIO(), io.BytesIO()]
    for number, buffer in enumerate(buffers):
        drawing(number).save(buffer, "PNG")
    pictures = [buffers[number].getvalue() for number in (0, 1, 0)]
    columns = {"picture": [{"bytes": one, "path": None} for one in pictures]}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    rows = read(tmp_path / "rows.parquet", tmp_path / "store")
    values = [row["picture"] for _, row in rows.rows]
    assert [Path(value["path"]).read_bytes() for value in values] == pictures
    assert len(list((tmp_path / "store").iterdir())) == 2
    assert has_media(str(rows.media.read(values[0], "picture")))

"""Vectors that a translation cannot rewrite are refused before anything is written, with place and remedy.

The verb `refresh` refuses the same ones in the same words.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from emberge import DataError
from emberge.cli.main import main
from emberge_index.vectors.pieces import require_floats
from safetensors.numpy import save_file

from tests.support.translations import vectors, write_translation


@pytest.fixture
def by(tmp_path: Path) -> Path:
    write_translation(tmp_path / "by", 24, 16)
    return tmp_path / "by"


def refused(
    by: Path, path: Path, capsys: pytest.CaptureFixture[str], *more: str, out: str | None = None
) -> str:
    """The error of a translation, and of an order of rows, that leave nothing behind."""
    before = {one.name for one in path.parent.iterdir()}

    def run(verb: str, target: str) -> str:
        words = [str(path), "--by", str(by), "--out", str(path.parent / target), *more]
        assert main([verb, *words]) == 2
        assert {one.name for one in path.parent.iterdir()} == before
        return " ".join(capsys.readouterr().err.split())

    error = run("translate", out or f"new{path.suffix}")
    assert out is not None or run("refresh", "order.npy") == error
    return error


def npy(by: Path, given: Any, name: str = "old.npy") -> Path:
    np.save(by.parent / name, given)
    return by.parent / name


Capture = pytest.CaptureFixture[str]


def test_another_dimension(by: Path, capsys: Capture) -> None:
    said = refused(by, npy(by, vectors(50, 20)), capsys)
    assert re.search(r"old\.npy.* 20 .* 24", said)


def test_vectors_that_have_the_new_dimension_already(by: Path, capsys: Capture) -> None:
    assert "already" in refused(by, npy(by, vectors(50, 16)), capsys)


def test_vectors_of_another_model_by_a_sample(by: Path, capsys: Capture) -> None:
    path = npy(by, -vectors(2000, 24, seed=3))
    said = refused(by, path, capsys)
    assert "old.npy" in said
    assert "--any-model" in said
    out = by.parent / "new.npy"
    assert main(["translate", str(path), "--by", str(by), "--out", str(out), "--any-model"]) == 0


@pytest.mark.parametrize(
    ("mark", "place"),
    [
        ('{"fingerprint": "cccc"}', "aaaaaaaaaaaa"),
        ('{"fingerprint": "%s"}' % ("b" * 64), "already"),
        ('{"fingerprint": "%s", "side": "queries"}' % ("a" * 64), "texts: queries"),
    ],
)
@pytest.mark.parametrize("suffix", ["safetensors", "parquet"])
def test_vectors_that_name_another_model_or_side(
    by: Path, capsys: Capture, mark: str, place: str, suffix: str
) -> None:
    path = by.parent / f"old.{suffix}"
    if suffix == "safetensors":
        save_file({"vectors": vectors(50, 24)}, path, metadata={"emberge.vectors": mark})
    else:
        table = pa.table({"vector": list(vectors(50, 24))})
        pq.write_table(table.replace_schema_metadata({"emberge.vectors": mark}), path)
    assert place in refused(by, path, capsys)


def test_lengths_that_are_not_the_models(by: Path, capsys: Capture) -> None:
    assert "divide each by its length" in refused(by, npy(by, 3 * vectors(50, 24)), capsys)
    write_translation(by, 24, unit=False)
    assert "Normalize" in refused(by, npy(by, vectors(50, 24)), capsys)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_codes(by: Path, capsys: Capture, dtype: str) -> None:
    given = (100 * vectors(50, 24)).astype(dtype)
    assert dtype in refused(by, npy(by, given), capsys)
    save_file({"v": given.astype(np.int8)}, by.parent / "old.safetensors")
    assert "`bridge`" in refused(by, by.parent / "old.safetensors", capsys)
    pq.write_table(pa.table({"v": list(given)}), by.parent / "old.parquet")
    assert "`bridge`" in refused(by, by.parent / "old.parquet", capsys)


def test_rows_that_are_not_finite_are_named_by_number_and_id(by: Path, capsys: Capture) -> None:
    given = vectors(900, 24)
    given[[3, 700, 899], 5] = [np.nan, np.inf, np.nan]
    out = by.parent / "new.npy"
    words = ["--by", str(by), "--out", str(out)]
    assert main(["translate", str(npy(by, given)), *words]) == 2
    assert re.search(r"3 rows.*\b3, 700, 899\b", capsys.readouterr().err)
    assert not out.exists()
    ids = [f"doc{row}" for row in range(900)]
    pq.write_table(
        pa.table({"id": ids, "v": list(given)}), by.parent / "old.parquet", row_group_size=100
    )
    words = ["--by", str(by), "--out", str(by.parent / "new.parquet")]
    assert main(["translate", str(by.parent / "old.parquet"), *words]) == 2
    assert "'doc700'" in capsys.readouterr().err


def test_a_row_of_parquet_without_its_vector(by: Path, capsys: Capture) -> None:
    given: list[Any] = [list(map(float, row)) for row in vectors(30, 24)]
    given[7] = None
    pq.write_table(
        pa.table({"id": list(range(30)), "v": pa.array(given, pa.list_(pa.float32()))}),
        by.parent / "old.parquet",
    )
    assert re.search(r"row 7 \(id 7\)", refused(by, by.parent / "old.parquet", capsys))


def test_files_of_another_form(by: Path, capsys: Capture) -> None:
    parent = by.parent
    assert "(50,)" in refused(by, npy(by, np.ones(50, np.float32)), capsys)
    assert "ascontiguousarray" in refused(by, npy(by, np.asfortranarray(vectors(50, 24))), capsys)
    for suffix in ("npy", "safetensors", "parquet", "faiss"):
        broken = parent / f"broken.{suffix}"
        broken.write_bytes(b"not at all what it is named after, and longer than a header")
        assert f"broken.{suffix}" in refused(by, broken, capsys)
    (parent / "old.txt").write_text("1 2 3")
    assert ".npy" in refused(by, parent / "old.txt", capsys)


def test_which_vectors_are_meant(by: Path, capsys: Capture) -> None:
    two = {"titles": vectors(9, 24), "texts": vectors(9, 24)}
    save_file(two, by.parent / "old.safetensors")
    said = refused(by, by.parent / "old.safetensors", capsys)
    assert "titles" in said
    assert "--column" in said
    pq.write_table(
        pa.table({name: list(one) for name, one in two.items()}), by.parent / "o.parquet"
    )
    assert "--column" in refused(by, by.parent / "o.parquet", capsys)
    said = refused(by, by.parent / "o.parquet", capsys, "--column", "text")
    assert "texts" in said


def test_where_nothing_can_be_written_or_read(by: Path, capsys: Capture) -> None:
    path = npy(by, vectors(50, 24))
    assert "old.npy" in refused(by, path, capsys, out="old.npy")
    (by.parent / "there.npy").write_text("mine")
    assert "there.npy: exists" in refused(by, path, capsys, out="there.npy")
    assert ".npy" in refused(by, path, capsys, out="new.parquet")
    assert "no_folder" in refused(by, path, capsys, out="no_folder/new.npy")
    assert "missing.npy" in refused(by, by.parent / "missing.npy", capsys, out="new.npy")
    assert "`translate`" in refused(by.parent, path, capsys)
    (by / "translation.safetensors").write_bytes(b"damaged")
    assert "translation.safetensors" in refused(by, path, capsys)


def test_mapped_vectors_beyond_the_numbers_of_their_file(by: Path, capsys: Capture) -> None:
    made = write_translation(by, 24, unit=False)
    made.fitted.matrix[:] *= 1e6
    made.write(by, {})
    path = npy(by, vectors(50, 24, unit=False).astype(np.float16))
    assert "not finite in float16" in refused(by, path, capsys)


def test_an_order_of_documents_is_refused_a_translation_of_queries(
    tmp_path: Path, capsys: Capture
) -> None:
    write_translation(tmp_path / "by", 24, 16, side="queries")
    np.save(tmp_path / "old.npy", vectors(50, 24))
    words = ["--by", str(tmp_path / "by"), "--out", str(tmp_path / "order.npy")]
    assert main(["refresh", str(tmp_path / "old.npy"), *words]) == 2
    assert "texts: documents" in capsys.readouterr().err


def test_all_rows_that_are_not_finite_are_counted_and_ten_named(by: Path, capsys: Capture) -> None:
    given = vectors(40, 24)
    given[3:14, 0] = np.nan
    error = refused(by, npy(by, given), capsys)
    assert "11 rows not finite" in error
    assert "counted from 0: 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 1 more;" in error
    given[13] = given[0]
    assert "11, 12;" in refused(by, npy(by, given), capsys)


def test_rows_that_are_not_finite_are_named_from_the_first_block_on(
    by: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from emberge_index.vectors import pieces

    monkeypatch.setattr(pieces, "BLOCK", 24 * 4 * 64)
    given = vectors(400, 24)
    given[[130, 399], 0] = np.inf
    assert "from 0: 130, 399;" in refused(by, npy(by, given), capsys)


@pytest.mark.parametrize("dtype", ["longdouble", ">f4"])
def test_numbers_that_no_other_program_writes(by: Path, capsys: Capture, dtype: str) -> None:
    assert "old.npy" in refused(by, npy(by, vectors(50, 24).astype(dtype)), capsys)


def test_a_disk_without_room_is_named_with_its_size(
    by: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """240,000 numbers of 4 bytes become 160,000; a parquet file is written twice."""
    from emberge_index.vectors import translate_verb

    asked = []
    monkeypatch.setattr(translate_verb, "require_space", lambda *given: asked.append(given))
    path = npy(by, vectors(10_000, 24))
    table = by.parent / "old.parquet"
    pq.write_table(pa.table({"v": list(vectors(10, 24))}), table)
    for one in (path, table):
        translate_verb.translate_file(one, by, one.with_name(f"new{one.suffix}"))
    assert asked == [
        (by.parent, path.stat().st_size * 16 // 24),
        (by.parent, 2 * (table.stat().st_size * 16 // 24)),
    ]


def test_vectors_that_are_cut_short_while_they_are_read(by: Path) -> None:
    from emberge import DataError
    from emberge_index.vectors.open_vectors import plan_vectors

    path = npy(by, vectors(100, 24))
    plan = plan_vectors(path, dimension=16)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError, match=r"old\.npy.*middle"):
        list(plan.rows.blocks(0, 30))


def test_a_marks_text_names_model_side_and_origin(by: Path) -> None:
    import json

    from emberge_index.translation.translation_file import read_translation
    from emberge_index.vectors.pieces import mark_of, read_mark

    text = mark_of(read_translation(by).header)
    assert json.loads(text) == {
        "fingerprint": "b" * 64,
        "model": "new",
        "side": "documents",
        "translated_from": "a" * 64,
    }
    assert list(json.loads(text)) == sorted(json.loads(text))
    assert read_mark(text) == read_mark(text.encode()) == ("b" * 64, "documents")
    for nothing in (None, "", "{}", "[1]", "{", b"\xff"):
        assert read_mark(nothing) == (None, None)


def test_codes_are_named_as_what_they_are_in_the_place_of(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"old\.npy: its vectors are int8, codes of rounded"):
        require_floats(tmp_path / "old.npy", np.dtype(np.int8))
    for name in ("float16", "float32", "float64"):
        require_floats(tmp_path / "old.npy", np.dtype(name))


def test_texts_in_place_of_vectors_are_what_is_refused(by: Path, capsys: Capture) -> None:
    texts = by.parent / "passages.jsonl"
    texts.write_text('{"text": "a"}')
    assert "passages.jsonl: is no file of vectors" in refused(by, texts, capsys, out="new.npy")


def test_a_bridge_is_no_map(by: Path, capsys: Capture) -> None:
    bridge = by.parent / "bridge"
    bridge.mkdir()
    (bridge / "modules.json").write_text("[]")
    said = refused(bridge, npy(by, vectors(50, 24)), capsys)
    assert "such as a step `bridge` makes" in said
    assert "step `translate`" in said


@pytest.mark.parametrize("planted", ["[" * 60_000, "[" * 70_000, "folder", "fifo", "null", "[]"])
def test_a_mark_that_is_none_is_ignored(by: Path, planted: str) -> None:
    from emberge_index.vectors.open_vectors import plan_vectors

    path = npy(by, vectors(50, 24))
    mark = path.with_name("old.npy.emberge.json")
    if planted == "folder":
        mark.mkdir()
    elif planted == "fifo":
        os.mkfifo(mark)
    else:
        mark.write_text(planted)
    plan = plan_vectors(path, dimension=16)
    assert (plan.fingerprint, plan.side) == (None, None)


def test_a_mark_names_model_and_side_only_by_texts() -> None:
    from emberge_index.vectors.pieces import read_mark

    assert read_mark('{"side": {"a": 1}, "fingerprint": "f"}') == ("f", None)
    assert read_mark('{"side": "queries", "fingerprint": 3}') == (None, "queries")
    assert read_mark("[" * 60_000) == (None, None)


def test_the_mark_of_a_result_replaces_an_older_mark_and_nothing_else(
    by: Path, capsys: Capture
) -> None:
    path = npy(by, vectors(50, 24))
    mark = path.with_name("new.npy.emberge.json")
    mark.write_text('{"mine": 1}')
    words = ["translate", str(path), "--by", str(by), "--out", str(path.with_name("new.npy"))]
    assert main(words) == 2
    assert "new.npy.emberge.json: exists already" in " ".join(capsys.readouterr().err.split())
    assert mark.read_text() == '{"mine": 1}'
    mark.write_text('{"file": "12 of a file that was removed"}')
    assert main(words) == 0
    assert '"side": "documents"' in mark.read_text()

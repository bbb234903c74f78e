"""Files of vectors from outside: what they claim is compared with what they are, before any work."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from emberge import DataError, EmbergeError
from emberge.cli.main import main
from emberge_index import are_unit, order_of, plan_vectors, read_vectors, translate_file
from emberge_index.vectors import open_vectors, pieces
from numpy.lib import format as npy
from safetensors.numpy import load_file, save_file

from tests.support.translations import expected, vectors, write_translation

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def by(tmp_path: Path) -> Path:
    """A translation from vectors of 24 numbers to 16."""
    write_translation(tmp_path / "by", 24, 16)
    return tmp_path / "by"


def npy_file(path: Path, shape: Any, descr: Any = "<f4", data: bytes = b"\0" * 96) -> Path:
    """An npy file whose header claims what it likes."""
    with path.open("wb") as file:
        npy.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
        file.write(data)
    return path


# ── numbers ─────────────────────────────────────────────────────────────────────────────────────


def test_refresh_refuses_rows_that_are_not_finite(
    by: Path, tmp_path: Path, capsys: Capture
) -> None:
    given = vectors(300, 24)
    given[[7, 250], 3] = [np.nan, np.inf]
    np.save(tmp_path / "old.npy", given)
    words = ["--by", str(by), "--out", str(tmp_path / "first.npy")]
    assert main(["refresh", str(tmp_path / "old.npy"), *words]) == 2
    error = capsys.readouterr().err
    assert "2 rows not finite" in error
    assert "7, 250" in error
    assert not (tmp_path / "first.npy").exists()


def test_float16_that_overflows_is_refused_and_not_written_as_infinity(tmp_path: Path) -> None:
    made = write_translation(tmp_path / "by", 24, unit=False)
    made.fitted.matrix[:] *= 1e5
    made.write(tmp_path / "by", {})
    np.save(tmp_path / "old.npy", vectors(50, 24, unit=False).astype(np.float16))
    with pytest.raises(DataError, match=r"old\.npy.*float16"):
        translate_file(tmp_path / "old.npy", tmp_path / "by", tmp_path / "new.npy", any_model=True)
    assert {one.name for one in tmp_path.iterdir()} == {"by", "old.npy"}


def test_empty_documents_vectors_stay_zeros_and_refuse_no_index(
    by: Path, tmp_path: Path, capsys: Capture
) -> None:
    given = vectors(300, 24)
    given[[0, 120, 299]] = 0
    np.save(tmp_path / "old.npy", given)
    words = ["--by", str(by), "--out", str(tmp_path / "new.npy")]
    assert main(["translate", str(tmp_path / "old.npy"), *words]) == 0
    assert "3 vectors of zeros" in capsys.readouterr().out
    found = np.load(tmp_path / "new.npy")
    assert not found[[0, 120, 299]].any()
    full = given.any(axis=1)
    wanted = expected(write_translation(by, 24, 16), given[full])
    np.testing.assert_allclose(found[full], wanted, rtol=0, atol=1e-5)
    assert are_unit(given)
    rows, _ = order_of(tmp_path / "old.npy", by)
    assert sorted(rows[-3:]) == [0, 120, 299], "there is nothing to embed anew"


def test_an_evaluated_index_has_the_same_zeros(by: Path) -> None:
    from emberge.encoding import read_space_map

    given = vectors(3, 24)
    given[1] = 0
    found = read_space_map(by).apply(given)
    assert found.any(axis=1).tolist() == [True, False, True]


# ── models and sides ────────────────────────────────────────────────────────────────────────────


def test_refresh_refuses_vectors_of_another_model(by: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "old.npy", -vectors(2000, 24, seed=3))
    with pytest.raises(DataError, match=r"old\.npy.*--any-model"):
        order_of(tmp_path / "old.npy", by)
    assert len(order_of(tmp_path / "old.npy", by, any_model=True)[0]) == 2000


@pytest.mark.parametrize(
    ("mark", "unit", "place"),
    [
        ({"fingerprint": "c" * 64}, True, "another model"),
        ({"fingerprint": "a" * 64}, True, "another model"),
        ({"fingerprint": "b" * 64, "side": "documents"}, True, "queries"),
        ({}, False, "length 1"),
    ],
)
def test_refresh_refuses_queries_that_are_not_the_new_models(
    by: Path, tmp_path: Path, mark: dict[str, str], unit: bool, place: str
) -> None:
    np.save(tmp_path / "old.npy", vectors(50, 24))
    log = tmp_path / "log.safetensors"
    save_file({"v": vectors(9, 16, unit=unit)}, log, metadata={"emberge.vectors": json.dumps(mark)})
    with pytest.raises(DataError, match=rf"log\.safetensors.*{place}"):
        order_of(tmp_path / "old.npy", by, queries=log)
    save_file({"v": vectors(9, 16)}, log, metadata={"emberge.vectors": '{"side": "queries"}'})
    assert len(order_of(tmp_path / "old.npy", by, queries=log)[0]) == 50


def test_space_refuses_stored_vectors_that_name_another_model(
    bert: Path, berts: list[Path], tmp_path: Path, capsys: Capture
) -> None:
    index = tmp_path / "index.safetensors"
    save_file({"v": vectors(40, 32)}, index, metadata={"emberge.vectors": '{"fingerprint": "c"}'})
    (tmp_path / "texts.txt").write_text("\n".join(f"text {row}" for row in range(40)))
    words = ["--texts", str(tmp_path / "texts.txt"), "--vectors", str(index)]
    assert main(["space", str(bert), str(berts[0]), *words]) == 2
    assert "marked as another model's" in capsys.readouterr().err


# ── headers ─────────────────────────────────────────────────────────────────────────────────────


def _long_header(path: Path) -> Path:
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 24)}".ljust(1 << 20)
    path.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text + b"\0" * 96)
    return path


HEADERS: dict[str, Callable[[Path], Path]] = {
    "more rows than the file": lambda path: npy_file(path, (10**12, 24)),
    "rows below none": lambda path: npy_file(path, (-1, 24)),
    "no numbers": lambda path: npy_file(path, (10**18, 0)),
    "too many numbers": lambda path: npy_file(path, (0, 10**9)),
    "a pickle": lambda path: npy_file(path, (1, 24), "|O"),
    "records": lambda path: npy_file(path, (1, 24), [("a", "<f4")]),
    "a long header": _long_header,
    "a header without an end": lambda path: (
        path.write_bytes(
            b"\x93NUMPY\x01\x00\x40\x00" + b"{'descr': '<f4', 'shape': (1, 24".ljust(64)
        )
        and path
    ),
    "no header": lambda path: path.write_bytes(b"\x93NUMPY\x01\x00\xff\xff{") and path,
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_npy_headers_that_claim_what_is_not_there(
    header: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = header(tmp_path / "old.npy")
    with pytest.raises(DataError, match=r"old\.npy"):
        read_vectors(path)


def _safetensors(path: Path, **entry: Any) -> Path:
    given = {"dtype": "F32", "shape": [1, 24], "data_offsets": [0, 96], **entry}
    text = json.dumps({"v": given}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 96)
    return path


@pytest.mark.parametrize(
    "entry",
    [
        {"shape": [10**12, 24]},
        {"shape": [-1, 24]},
        {"shape": ["1", 24]},
        {"data_offsets": [0, 10**12]},
        {"data_offsets": [48, 96]},
        {"dtype": "F8"},
        {"dtype": ["F32"]},
        {"dtype": "BF16", "shape": [2, 24]},
    ],
    ids=str,
)
def test_safetensors_headers_that_claim_what_is_not_there(
    entry: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"old\.safetensors"):
        read_vectors(_safetensors(tmp_path / "old.safetensors", **entry))


def _index(word: bytes, dimension: int, count: int) -> bytes:
    return struct.pack("<4siqqq?i", word, dimension, count, 0, 0, True, 0)


@pytest.mark.parametrize(
    "content",
    [
        _index(b"IxFI", 24, 10**12),
        _index(b"IxFI", 24, -5),
        _index(b"IxFI", -24, 5),
        _index(b"IxMp", 24, 1) * 1000,
        _index(b"IxMp", 24, -(10**9)) * 3,
        _index(b"IHNf", 24, 10**9) * 3,
        _index(b"\x1b[2J", 24, 1),
    ],
)
def test_faiss_headers_that_claim_what_is_not_there(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "old.faiss"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"old\.faiss") as refused:
        read_vectors(path)
    assert "\x1b" not in str(refused.value)


def test_counts_that_no_index_has_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "old.faiss"
    path.write_bytes(_index(b"IxMp", 24, -5))
    with pytest.raises(DataError, match=r"old\.faiss: claims -5 vectors of 24 numbers"):
        read_vectors(path)


def test_indexes_in_one_another_are_looked_into_four_deep(tmp_path: Path) -> None:
    """Ids around ids around ids around a flat index, and one more."""
    path = tmp_path / "old.faiss"
    flat = _index(b"IxFI", 1, 2) + struct.pack("<Q2f", 2, 0.5, -0.5)
    ids = struct.pack("<Q2q", 2, 7, 8)
    for deep in (1, 2, 3):
        path.write_bytes(_index(b"IxMp", 1, 2) * deep + flat + ids * deep)
        assert read_vectors(path).rows.tolist() == [[0.5], [-0.5]]
    path.write_bytes(_index(b"IxMp", 1, 2) * 4 + flat + ids * 4)
    with pytest.raises(DataError, match="nested more than 4 deep"):
        read_vectors(path)


@pytest.mark.parametrize(
    ("word", "what"),
    [
        (b"IHNs", "8-bit codes behind a graph"),
        (b"IHNp", "PQ codes behind a graph"),
        (b"IxPq", "PQ codes"),
        (b"IxPo", "PQ codes"),
        (b"IxPT", "vectors behind a transformation"),
        (b"IwPQ", "PQ codes in inverted lists"),
        (b"IwSq", "8-bit codes in inverted lists"),
        (b"XxXx", "of kind 'XxXx', not known here"),
    ],
)
def test_an_index_that_cannot_be_rewritten_is_named(word: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "old.index"
    path.write_bytes(_index(word, 24, 1) + bytes(200))
    with pytest.raises(DataError, match=rf"old\.index.*{what}.*`bridge`"):
        read_vectors(path)


def test_inverted_lists_that_are_damaged_are_refused_by_name(tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    index = faiss.index_factory(24, "IVF4,Flat")
    index.train(vectors(200, 24))
    index.add(vectors(200, 24))
    faiss.write_index(index, str(tmp_path / "old.index"))
    content = (tmp_path / "old.index").read_bytes()
    lists = content.index(b"ilar") + 4  # the number of lists, after their word
    for damaged in (
        content[:-100],
        content[:200],
        content[:lists] + struct.pack("<Q", 3) + content[lists + 8 :],
        content[:8] + struct.pack("<q", 199) + content[16:],
        _index(b"IwFl", 24, 1) + bytes(200),
    ):
        (tmp_path / "old.index").write_bytes(damaged)
        with pytest.raises(DataError, match=r"old\.index.*build it again"):
            read_vectors(tmp_path / "old.index")


def test_a_flat_faiss_index_is_read_as_it_is(tmp_path: Path) -> None:
    given = vectors(50, 24)
    path = tmp_path / "old.faiss"
    path.write_bytes(_index(b"IxFI", 24, 50) + struct.pack("<Q", 50 * 24) + given.tobytes())
    assert (read_vectors(path).rows == given).all()


# ── parquet ─────────────────────────────────────────────────────────────────────────────────────


def test_a_parquet_file_that_is_damaged_inside_is_named(by: Path, tmp_path: Path) -> None:
    path = tmp_path / "old.parquet"
    given = vectors(2000, 24)
    pq.write_table(pa.table({"v": list(given)}), path, compression="zstd")
    content = bytearray(path.read_bytes())
    content[4:60] = b"\xff" * 56
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"old\.parquet.*damaged"):
        translate_file(path, by, tmp_path / "new.parquet")
    assert {one.name for one in tmp_path.iterdir()} == {"by", "old.parquet"}


def test_a_parquet_file_with_names_in_no_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "old.parquet"
    pq.write_table(pa.table({"vector": list(vectors(20, 24))}), path)
    content = path.read_bytes()
    assert b"vector" in content
    path.write_bytes(content.replace(b"vector", b"vec\xf9or"))
    with pytest.raises(DataError, match=r"old\.parquet"):
        read_vectors(path)


def test_a_row_of_parquet_that_is_longer_than_the_first_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [[0.5] * 24, [0.0] * 2_000_000, [0.5] * 24]
    pq.write_table(pa.table({"v": pa.array(rows, pa.list_(pa.float32()))}), tmp_path / "o.parquet")
    assert os.path.getsize(tmp_path / "o.parquet") < 50_000
    with pytest.raises(DataError, match=r"o\.parquet.*2,000,048 numbers"):
        plan_vectors(tmp_path / "o.parquet", dimension=24)
    pq.write_table(
        pa.table({"v": pa.array(rows[1:], pa.list_(pa.float32()))}), tmp_path / "o.parquet"
    )
    with pytest.raises(DataError, match=r"o\.parquet.*2,000,000 numbers"):
        plan_vectors(tmp_path / "o.parquet", dimension=24)


def test_ids_and_columns_are_shown_without_what_steers_a_terminal(by: Path, tmp_path: Path) -> None:
    given = vectors(30, 24)
    given[4] = np.nan
    path = tmp_path / "old.parquet"
    ids = [f"\x1b[31m\u202e{row}" for row in range(30)]
    pq.write_table(pa.table({"id": ids, "a\x1b[2J": list(given)}), path)
    with pytest.raises(DataError, match="row") as refused:
        translate_file(path, by, tmp_path / "new.parquet")
    assert str(refused.value).isprintable()
    with pytest.raises(DataError, match="column") as refused:
        translate_file(path, by, tmp_path / "new.parquet", column="b")
    assert str(refused.value).isprintable()


# ── files that are none ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".parquet", ".faiss"])
def test_a_pipe_is_not_waited_for(suffix: str, by: Path, tmp_path: Path) -> None:
    path = tmp_path / f"old{suffix}"
    os.mkfifo(path)
    with pytest.raises(DataError, match="no such file"):
        translate_file(path, by, tmp_path / f"new{suffix}")
    np.save(tmp_path / "good.npy", vectors(20, 24))
    with pytest.raises(DataError, match="no such file"):
        order_of(tmp_path / "good.npy", by, queries=path)


def test_more_vectors_than_the_memory_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "old.npy", vectors(20, 24))

    def full(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "empty", full)
    with pytest.raises(DataError, match=r"old\.npy.*do not fit the memory"):
        read_vectors(tmp_path / "old.npy")


def test_a_column_of_a_file_without_columns_is_refused(by: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "old.npy", vectors(20, 24))
    with pytest.raises(EmbergeError, match=r"old\.npy.*--column"):
        translate_file(tmp_path / "old.npy", by, tmp_path / "new.npy", column="v")


def test_what_is_read_whole_is_what_the_file_has(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(pieces, "BLOCK", 24 * 4 * 64)
    given = vectors(1000, 24)
    np.save(tmp_path / "v.npy", given)
    save_file({"v": given, "other": np.arange(3)}, tmp_path / "v.safetensors")
    pq.write_table(pa.table({"v": list(given)}), tmp_path / "v.parquet", row_group_size=300)
    for suffix in ("npy", "safetensors", "parquet"):
        assert (read_vectors(tmp_path / f"v.{suffix}").rows == given).all()
    assert set(load_file(tmp_path / "v.safetensors")) == {"v", "other"}
    assert open_vectors.FORMATS


# ── texts of the verbs ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lines", ["", "\n\n", "one text\n", "the same\n" * 40])
@pytest.mark.parametrize("verb", ["space", "thresholds"])
def test_too_few_texts_to_compare_are_named(
    verb: str, lines: str, bert: Path, berts: list[Path], tmp_path: Path, capsys: Capture
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text(lines)
    assert main([verb, str(bert), str(berts[0]), "--texts", str(texts)]) == 2
    error = capsys.readouterr().err
    assert "give" in error
    assert "text" in error
    assert "Error" not in error

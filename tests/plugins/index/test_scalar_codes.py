"""faiss indexes of scalar codes, which a translation builds again from the vectors that they decode."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge.cli.main import main
from numpy.typing import NDArray

from tests.support.translations import expected, vectors, write_translation

faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")
ROWS = 600
Capture = pytest.CaptureFixture[str]


def write_index(path: Path, kind: str, given: NDArray[Any], metric: int) -> Any:
    """Write an index of vectors, with ids if its kind has them, and return it."""
    index = faiss.index_factory(24, kind, metric)
    index.train(given)
    if "IDMap" in kind:
        index.add_with_ids(given, 7 * np.arange(len(given)))
    else:
        index.add(given)
    faiss.write_index(index, str(path))
    return index


def inner_of(index: Any) -> Any:
    return faiss.downcast_index(index.index) if hasattr(index, "id_map") else index


def translate(folder: Path, out: str = "new.faiss") -> int:
    words = ["--by", str(folder / "by"), "--out", str(folder / out), "--quiet"]
    return main(["translate", str(folder / "old.faiss"), *words])


@pytest.mark.parametrize("metric", [faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2])
@pytest.mark.parametrize("kind", ["SQ8", "SQfp16", "SQbf16", "IDMap,SQ8", "IDMap2,SQ8"])
def test_an_index_has_the_codes_of_the_mapped_vectors_and_all_else_of_the_old(
    tmp_path: Path, kind: str, metric: int
) -> None:
    translation = write_translation(tmp_path / "by", 24, 16)
    outer = write_index(tmp_path / "old.faiss", kind, vectors(ROWS, 24), metric)
    old = inner_of(outer)  # lives as long as its map of ids
    assert translate(tmp_path) == 0
    index = faiss.read_index(str(tmp_path / "new.faiss"))
    assert type(index) is type(faiss.read_index(str(tmp_path / "old.faiss")))
    assert (index.d, index.ntotal, index.metric_type, index.is_trained) == (16, ROWS, metric, True)
    inner = inner_of(index)
    assert (inner.sq.qtype, inner.sq.rangestat) == (old.sq.qtype, old.sq.rangestat)
    wanted = expected(translation, old.reconstruct_n(0, ROWS)).astype(np.float32)
    built = faiss.IndexScalarQuantizer(16, old.sq.qtype, metric)
    built.train(wanted)
    built.add(wanted)
    step = (wanted.max(0) - wanted.min(0)).max() / 255
    assert np.abs(inner.reconstruct_n(0, ROWS) - built.reconstruct_n(0, ROWS)).max() <= 1.1 * step
    ids = (7 if "IDMap" in kind else 1) * np.arange(40)
    assert (index.search(wanted[:40], 1)[1][:, 0] == ids).mean() > 0.9


def test_a_range_statistic_other_than_the_extremes_is_kept(tmp_path: Path) -> None:
    write_translation(tmp_path / "by", 24, 16)
    given = vectors(ROWS, 24)
    index = faiss.IndexScalarQuantizer(24, faiss.ScalarQuantizer.QT_8bit)
    index.sq.rangestat, index.sq.rangestat_arg = faiss.ScalarQuantizer.RS_meanstd, 5.0
    index.train(given)
    index.add(given)
    faiss.write_index(index, str(tmp_path / "old.faiss"))
    assert translate(tmp_path) == 0
    new = faiss.read_index(str(tmp_path / "new.faiss"))
    assert new.sq.rangestat == faiss.ScalarQuantizer.RS_meanstd
    assert new.sq.rangestat_arg == 5.0


def test_an_index_is_built_again_byte_for_byte_whatever_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_translation(tmp_path / "by", 24, 16)
    write_index(tmp_path / "old.faiss", "SQ8", vectors(ROWS, 24), faiss.METRIC_L2)
    assert translate(tmp_path, "first.faiss") == 0
    monkeypatch.setattr("emberge_index.vectors.pieces.BLOCK", 4096)
    assert translate(tmp_path, "second.faiss") == 0
    first, second = ((tmp_path / f"{name}.faiss").read_bytes() for name in ("first", "second"))
    assert first == second


@pytest.mark.parametrize("kind", ["QT_8bit_direct", "QT_8bit_direct_signed", "QT_4bit", "QT_6bit"])
def test_codes_that_are_too_coarse_are_refused(tmp_path: Path, capsys: Capture, kind: str) -> None:
    write_translation(tmp_path / "by", 24, 16)
    index = faiss.IndexScalarQuantizer(24, getattr(faiss.ScalarQuantizer, kind))
    index.train(vectors(ROWS, 24))
    index.add(np.round(50 * vectors(ROWS, 24)))
    faiss.write_index(index, str(tmp_path / "old.faiss"))
    assert translate(tmp_path) == 2
    assert "are too coarse to be mapped" in capsys.readouterr().err
    assert not (tmp_path / "new.faiss").exists()


def test_an_empty_index_and_a_cut_one_are_refused(tmp_path: Path, capsys: Capture) -> None:
    write_translation(tmp_path / "by", 24, 16)
    write_index(tmp_path / "old.faiss", "SQ8", vectors(ROWS, 24), faiss.METRIC_L2)
    whole = (tmp_path / "old.faiss").read_bytes()
    (tmp_path / "old.faiss").write_bytes(whole[:-100])
    assert translate(tmp_path) == 2
    assert "or damaged" in capsys.readouterr().err
    empty = faiss.IndexScalarQuantizer(24, faiss.ScalarQuantizer.QT_8bit)
    empty.train(vectors(ROWS, 24))
    faiss.write_index(empty, str(tmp_path / "old.faiss"))
    assert translate(tmp_path) == 2
    assert "has no vectors" in capsys.readouterr().err


@pytest.mark.parametrize("more", ["ids", "codes"])
def test_another_number_of_codes_or_ids_is_refused(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    """Releases of faiss differ in what they find wrong with such a file themselves."""
    write_translation(tmp_path / "by", 24, 16)
    kind = "IDMap,SQ8" if more == "ids" else "SQ8"
    index = write_index(tmp_path / "old.faiss", kind, vectors(ROWS, 24), faiss.METRIC_L2)
    if more == "ids":
        index.id_map.push_back(3)
    else:
        index.ntotal -= 1
    monkeypatch.setattr("emberge_index.vectors.scalar_codes.read_faiss_index", lambda *_: index)
    assert translate(tmp_path) == 2
    assert "another number of codes or ids" in capsys.readouterr().err
    assert not (tmp_path / "new.faiss").exists()


def test_a_row_that_is_not_finite_is_named_by_its_id(tmp_path: Path, capsys: Capture) -> None:
    write_translation(tmp_path / "by", 24, 16)
    given = vectors(ROWS, 24)
    index = faiss.index_factory(24, "IDMap,SQfp16", faiss.METRIC_L2)
    given[5, 3] = np.nan
    index.train(given)
    index.add_with_ids(given, 7 * np.arange(ROWS))
    faiss.write_index(index, str(tmp_path / "old.faiss"))
    assert translate(tmp_path) == 2
    assert "id 35" in capsys.readouterr().err


def test_without_faiss_the_extra_is_named(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_translation(tmp_path / "by", 24, 16)
    write_index(tmp_path / "old.faiss", "SQ8", vectors(ROWS, 24), faiss.METRIC_L2)
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    assert translate(tmp_path) == 2
    assert "pip install 'emberge[index]'" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["flat", "ids", "lists", "graph"])
def test_an_index_of_bits_is_refused_with_the_way_out(
    tmp_path: Path, capsys: Capture, kind: str
) -> None:
    write_translation(tmp_path / "by", 24, 16)
    flat = faiss.IndexBinaryFlat(24)
    index = {
        "flat": flat,
        "ids": faiss.IndexBinaryIDMap(flat),
        "lists": faiss.IndexBinaryIVF(flat, 24, 4),
        "graph": faiss.IndexBinaryHNSW(24, 8),
    }[kind]
    bits = np.packbits(vectors(ROWS, 24) > 0, axis=1)
    index.train(bits)
    if kind == "ids":
        index.add_with_ids(bits, np.arange(ROWS))
    else:
        index.add(bits)
    faiss.write_index_binary(index, str(tmp_path / "old.faiss"))
    assert translate(tmp_path) == 2
    said = capsys.readouterr().err
    assert "holds bits" in said
    assert "--as binary" in said

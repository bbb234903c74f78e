"""The verb and the step `refresh` for an index of int8 codes, or of bits beside their vectors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emberge.cli.main import main
from emberge.contracts import StoredForm
from emberge.encoding import Int8Ranges, QuantisedVectors
from emberge_index import refresh_step
from emberge_index.refresh_verb import DEPTH
from emberge_index.vectors import pieces
from numpy.typing import NDArray
from sentence_transformers import quantize_embeddings

from tests.support.translations import expected, pairs, recipe, vectors, write_translation

ROWS = 1000
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Float vectors, their int8 codes with ranges, their bits, and the new model's vectors of a log."""
    translation = write_translation(tmp_path / "by", 24, 16)
    given = vectors(ROWS, 24)
    ranges = np.stack([given.min(0), given.max(0)])
    np.save(tmp_path / "floats.npy", given)
    np.save(tmp_path / "codes.npy", quantize_embeddings(given, "int8", ranges=ranges))
    np.savez(tmp_path / "ranges.npz", ranges=ranges)
    np.save(tmp_path / "bits.npy", quantize_embeddings(given, "ubinary"))
    log = expected(translation, given[:9]) + 0.1 * vectors(9, 16, seed=3)
    np.save(tmp_path / "log.npy", (log / np.linalg.norm(log, axis=1, keepdims=True)).astype("f4"))
    return tmp_path


def refresh(place: Path, name: str, *words: str, out: str = "first.npy") -> int:
    paths = ["--by", str(place / "by"), "--out", str(place / out)]
    return main(["refresh", str(place / name), *paths, *words])


def order(place: Path, name: str, *words: str) -> list[int]:
    log = ["--queries", str(place / "log.npy")]
    assert refresh(place, name, *log, *words) == 0
    rows = np.load(place / "first.npy")
    assert sorted(rows) == list(range(ROWS))
    (place / "first.npy").unlink()
    return [int(row) for row in rows]


def hits(place: Path, stored: NDArray[Any]) -> NDArray[np.float64]:
    """Each document's sum of 1 / log2(rank + 1) over the log's queries, among unit vectors `stored`."""
    units = stored / np.linalg.norm(stored, axis=1, keepdims=True)
    weights = np.zeros(len(stored))
    for query in np.load(place / "log.npy"):
        for rank, row in enumerate(np.argsort(-(units @ query), kind="stable")[:DEPTH]):
            weights[row] += 1 / np.log2(rank + 2)
    return weights


def assert_by(found: list[int], weights: NDArray[np.float64]) -> None:
    count = np.count_nonzero(weights)
    np.testing.assert_allclose(weights[found[:count]], np.sort(weights)[::-1][:count], rtol=1e-9)


def bits_of(place: Path) -> list[str]:
    return ["--bits", str(place / "bits.npy")]


def test_hits_are_those_among_the_bits_that_the_index_will_have(place: Path) -> None:
    translation = write_translation(place / "by", 24, 16)
    mapped = expected(translation, np.load(place / "floats.npy"))
    plain = order(place, "floats.npy")
    assert_by(plain, hits(place, mapped))
    found = order(place, "floats.npy", *bits_of(place))
    assert_by(found, hits(place, np.where(mapped > 0, 1.0, -1.0)))
    assert found != plain


def test_hits_are_those_among_the_codes_that_translate_writes(place: Path) -> None:
    ranges = ["--ranges", str(place / "ranges.npz")]
    found = order(place, "codes.npy", *ranges)
    words = ["--by", str(place / "by"), "--out", str(place / "new.npy"), "--quiet"]
    assert main(["translate", str(place / "codes.npy"), *ranges, *words]) == 0
    known = Int8Ranges.read(place / "new.npy.ranges.npz", 16)
    weights = hits(place, known.decode(np.load(place / "new.npy"), middle=True))
    # Scores that differ by a rounding may change places: 0.004. Hits among floats are 0.03 away.
    np.testing.assert_allclose(weights[found], np.sort(weights)[::-1], atol=0.01)


@pytest.mark.parametrize("bits", [True, False])
def test_the_order_is_the_same_whatever_the_blocks(
    place: Path, monkeypatch: pytest.MonkeyPatch, bits: bool
) -> None:
    words = bits_of(place) if bits else []
    whole = order(place, "floats.npy", *words)
    monkeypatch.setattr(pieces, "BLOCK", 24 * 4 * 64)
    assert order(place, "floats.npy", *words) == whole


def test_bits_may_lie_beside_codes(place: Path) -> None:
    words = ["--ranges", str(place / "ranges.npz"), *bits_of(place)]
    first, second = order(place, "codes.npy", *words), order(place, "floats.npy", *bits_of(place))
    assert len(set(first[:100]) & set(second[:100])) > 80


def test_an_empty_document_comes_last_among_bits(place: Path) -> None:
    given = np.load(place / "floats.npy")
    given[17] = 0
    np.save(place / "floats.npy", given)
    np.save(place / "bits.npy", np.packbits(given > 0, axis=-1))
    np.save(place / "log.npy", -np.ones((3, 16), np.float32) / 4)  # its bits are all 0
    assert order(place, "floats.npy", *bits_of(place))[-1] == 17


# ── what is refused ─────────────────────────────────────────────────────────────────────────────


def _changed(place: Path, change: Callable[[Any], Any]) -> None:
    np.save(place / "bits.npy", change(np.load(place / "bits.npy")))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda bits: bits[:, :2], "2 bytes a row, and the signs of the 24 numbers"),
        (lambda bits: np.hstack([bits, bits]), "6 bytes a row"),
        (lambda bits: bits[1:], "999 rows"),
        (lambda bits: np.roll(bits, 1, axis=0), "in their order"),
        (lambda bits: (bits.astype(int) - 128).astype(np.int8), "are int8, and bits are uint8"),
        (lambda bits: bits[0], "not rows of vectors"),
    ],
)
def test_bits_of_other_vectors_are_refused(
    place: Path, capsys: Capture, change: Callable[[Any], Any], words: str
) -> None:
    _changed(place, change)
    assert refresh(place, "floats.npy", *bits_of(place)) == 2
    said = capsys.readouterr().err
    assert "bits.npy" in said
    assert words in said
    assert not (place / "first.npy").exists()


def test_rows_of_other_bits_are_counted_and_named(
    place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "BLOCK", 24 * 4 * 64)

    def invert(bits: Any) -> Any:
        bits[[3, 700]] ^= 255
        return bits

    _changed(place, invert)
    assert refresh(place, "floats.npy", *bits_of(place)) == 2
    said = capsys.readouterr().err
    assert "2 rows" in said
    assert ": 3, 700;" in said


def test_a_file_without_bits_is_named(place: Path, capsys: Capture) -> None:
    for name in ("missing.npy", "ranges.npz"):
        assert refresh(place, "floats.npy", "--bits", str(place / name)) == 2
        assert f"{name}: is no .npy file of bits" in capsys.readouterr().err


def test_product_codes_are_refused_with_the_reason(place: Path, capsys: Capture) -> None:
    faiss = pytest.importorskip("faiss")
    given = np.load(place / "floats.npy")
    index = faiss.index_factory(24, "PQ3x8")
    index.train(given)
    index.add(given)
    faiss.write_index(index, str(place / "pq.faiss"))
    assert refresh(place, "pq.faiss") == 2
    assert "holds PQ codes, which cannot be rewritten" in capsys.readouterr().err
    # Three bytes a row, as many as bits have.
    np.save(place / "bits.npy", index.sa_encode(given))
    assert refresh(place, "floats.npy", *bits_of(place)) == 2
    assert "Product codes are no signs" in capsys.readouterr().err


@pytest.mark.parametrize("unit", [True, False])
def test_ranges_of_another_model_are_suspected(place: Path, capsys: Capture, unit: bool) -> None:
    write_translation(place / "by", 24, 16, unit=unit)
    given = vectors(ROWS, 24, unit=unit)
    ranges = np.stack([given.min(0), given.max(0)])
    np.save(place / "codes.npy", quantize_embeddings(given, "int8", ranges=ranges))
    np.savez(place / "ranges.npz", ranges=-ranges[::-1])
    assert refresh(place, "codes.npy", "--ranges", str(place / "ranges.npz")) == 2
    assert "or the --ranges are another model's" in capsys.readouterr().err


# ── the step ────────────────────────────────────────────────────────────────────────────────────


def _fit(place: Path) -> Any:
    """The parts of a fit that decide an order: the floats as old documents, the log as new queries."""
    translation, given = write_translation(place / "by", 24, 16), np.load(place / "floats.npy")
    log = np.load(place / "log.npy")
    return SimpleNamespace(
        translation=translation,
        folds=SimpleNamespace(out_of_fold=translation.fitted(given), fitted=translation.fitted),
        old=SimpleNamespace(documents=given),
        new=SimpleNamespace(of=lambda _: log),
    )


def test_codes_of_the_old_vectors_are_decoded_before_they_are_mapped(place: Path) -> None:
    given = np.load(place / "floats.npy")
    given[0] *= 20  # so that steps are coarse
    np.save(place / "floats.npy", given)
    fit, ranges = _fit(place), Int8Ranges.of(given)
    rounded = ranges.decode(ranges.encode(given), middle=True)
    for precision, old in (("int8", rounded), ("binary", given)):
        wanted = expected(fit.translation, old)
        found = refresh_step._map_stored(fit, StoredForm(precision=precision))
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_the_order_of_the_step_is_by_hits_among_bits(place: Path) -> None:
    fit, form = _fit(place), StoredForm(precision="binary")
    mapped = refresh_step._map_stored(fit, form)
    index = QuantisedVectors.store(form, mapped)
    orders = refresh_step._order_documents(fit, index, mapped, np.arange(9), 0)
    assert_by(orders["hits"].tolist(), hits(place, np.where(mapped > 0, 1.0, -1.0)))


@pytest.mark.parametrize(
    ("stored", "label"),
    [
        ("int8", "int8"),
        ("binary", "binary"),
        ({"precision": "binary", "rescore": 20, "by": "int8"}, "binary, 20 by int8"),
    ],
)
def test_the_curve_is_that_of_the_form_which_is_stored(
    berts: list[Path], tmp_path: Path, stored: Any, label: str
) -> None:
    def curves(**options: Any) -> Any:
        models = {"old": str(berts[0]), "new": str(berts[1])}
        path = recipe(tmp_path, "refresh", **models, shares=[0, 1], rows=pairs(60), **options)
        assert main(["run", str(path), "--out", str(tmp_path / "out"), "--quiet"]) == 0
        return json.loads((tmp_path / "out" / "made" / "curve.json").read_text())

    plain, found = curves(), curves(stored=stored)
    assert (plain["stored"], found["stored"]) == ("float32", label)
    assert found["ndcg"] != plain["ndcg"]
    table = (tmp_path / "out" / "made" / "curve.md").read_text()
    assert f" new, stored as {label}." in table
    if stored == "binary":  # the signs of the new model's vectors, whatever was mapped
        assert found["new"] != plain["new"]
        assert all(scores[-1] == found["new"] for scores in found["ndcg"].values())


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({"precision": "int8", "size": 8}, "leave size out"),
        ({"precision": "float32", "rescore": 4}, "rescore changes nothing"),
    ],
)
def test_forms_that_are_not_refreshed_are_refused(
    berts: list[Path], tmp_path: Path, capsys: Capture, stored: dict[str, Any], words: str
) -> None:
    path = recipe(tmp_path, "refresh", old=str(berts[0]), new=str(berts[1]), stored=stored)
    assert main(["check", str(path)]) == 2
    assert words in capsys.readouterr().err

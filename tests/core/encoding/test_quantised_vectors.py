"""Stored vectors have the library's codes, and are searched as a few lines of numpy would."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emberge.contracts import StoredForm
from emberge.encoding import Int8Ranges, QuantisedVectors
from emberge.encoding import quantised_vectors as module
from sentence_transformers.util.quantization import (
    _dequantize_embeddings,
    quantize_embeddings,
    semantic_search_faiss,
)

Array = np.ndarray[Any, Any]
SIZE = 37  # not a whole number of bytes


def unit(count: int, size: int = SIZE, seed: int = 0) -> Array:
    rows = np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def both(ranges: Int8Ranges) -> Array:
    return np.stack([ranges.low, ranges.high])


# ── codes ───────────────────────────────────────────────────────────────────────────────────────


def test_codes_of_int8_and_their_numbers_are_the_librarys() -> None:
    sample, rows = unit(200), unit(50, seed=1)  # of which some are outside the sample's ranges
    sample[:, 5] = 0.25  # a dimension without a range
    ranges = Int8Ranges.of(sample)
    codes = quantize_embeddings(rows, "int8", ranges=both(ranges))
    assert np.array_equal(ranges.encode(rows), codes)
    assert codes.min() == -128
    assert codes.max() == 127
    assert np.allclose(
        ranges.decode(codes), _dequantize_embeddings(codes, "int8", both(ranges)), atol=1e-6
    )
    inside = np.delete(sample, 5, axis=1)
    lost = np.delete(sample - ranges.decode(ranges.encode(sample)), 5, axis=1)
    assert np.abs(lost).max() <= 1.01 * (inside.max(0) - inside.min(0)).max() / 255


def test_bits_are_the_librarys_and_zero_is_one_of_the_low_numbers() -> None:
    rows = unit(20)
    rows[:, 3] = 0
    stored = QuantisedVectors.store(StoredForm(precision="binary"), rows)
    assert np.array_equal(stored.rows, quantize_embeddings(rows, "ubinary"))
    assert stored.rows.shape == (20, 5)
    assert np.array_equal(stored.values(), np.where(rows > 0, 1, -1))


def test_halves_are_halves() -> None:
    rows = unit(20)
    stored = QuantisedVectors.store(StoredForm(precision="float16"), rows)
    assert stored.rows.dtype == np.float16
    assert np.array_equal(stored.values(), rows.astype(np.float16).astype(np.float32))


def test_ranges_of_what_has_none_are_refused() -> None:
    with pytest.raises(ValueError, match="there are 1"):
        Int8Ranges.of(unit(1))
    for number in (np.nan, np.inf):
        rows = unit(5)
        rows[2, 7] = number
        with pytest.raises(ValueError, match="NaN or infinite"):
            Int8Ranges.of(rows)
    for form in (
        StoredForm(precision="int8"),
        StoredForm(precision="binary", rescore=3, by="int8"),
    ):
        with pytest.raises(ValueError, match="needs the ranges"):
            QuantisedVectors.store(form, unit(5))


# ── search ──────────────────────────────────────────────────────────────────────────────────────


def ordered(scores: Array) -> Array:
    """Places by falling scores; equal scores keep their order."""
    return np.argsort(-scores, axis=1, kind="stable")


def plain_scores(form: StoredForm, queries: Array, rows: Array, ranges: Int8Ranges) -> Array:
    """Scores of a first look, [queries, rows]."""
    decoded = ranges.decode(ranges.encode(rows)).astype(np.float64)
    match form.precision, form.compares_codes:
        case "int8", True:
            codes = [ranges.encode(one).astype(np.int64) for one in (queries, rows)]
            return codes[0] @ codes[1].T
        case "int8", False:
            return queries @ decoded.T
        case "binary", True:
            return -((queries > 0)[:, None] ^ (rows > 0)[None]).sum(-1)
        case "binary", False:
            return queries @ np.where(rows > 0, 1.0, -1.0).T
        case "float16", _:
            return queries @ rows.astype(np.float16).astype(np.float64).T
        case _:
            return queries @ rows.T


FORMS = [
    StoredForm(),
    StoredForm(precision="float16"),
    StoredForm(precision="int8"),
    StoredForm(precision="int8", queries="stored"),
    StoredForm(precision="binary"),
    StoredForm(precision="binary", queries="float32"),
]


@pytest.mark.parametrize("cells", [1, 5000, None])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.label)
def test_a_search_is_that_of_a_whole_table(
    form: StoredForm, cells: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cells is not None:
        monkeypatch.setattr(module, "_CELLS", cells)
    queries, rows = unit(9, seed=1), unit(300)
    ranges = Int8Ranges.of(rows[:100])
    stored = QuantisedVectors.store(form, rows, ranges)
    expected = ordered(plain_scores(form, queries, rows, ranges))
    assert np.array_equal(stored.search(queries, 20), expected[:, :20])
    assert np.array_equal(stored.search(queries, 1000), expected)


def test_equal_distances_keep_the_order_of_the_vectors() -> None:
    rows = np.repeat(unit(3, seed=4), [5, 5, 5], axis=0)
    stored = QuantisedVectors.store(StoredForm(precision="binary"), rows)
    found = stored.search(rows[5:6], 15)[0].tolist()
    assert found[:5] == [5, 6, 7, 8, 9]
    assert found[5:10] in ([0, 1, 2, 3, 4], [10, 11, 12, 13, 14])


@pytest.mark.parametrize("cells", [1, None])
@pytest.mark.parametrize("by", [None, "binary", "int8", "float32"])
def test_the_first_documents_are_looked_at_again_and_others_keep_their_places(
    by: Any, cells: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cells is not None:
        monkeypatch.setattr(module, "_CELLS", cells)
    queries, rows = unit(9, seed=1), unit(300)
    ranges = Int8Ranges.of(rows)
    form = StoredForm(precision="binary", rescore=30, by=by)
    stored = QuantisedVectors.store(form, rows, ranges)
    first = ordered(plain_scores(StoredForm(precision="binary"), queries, rows, ranges))
    again = StoredForm(precision=by or "binary", queries="float32")
    scores = plain_scores(again, queries, rows, ranges)
    expected = [
        [*sorted(row[:30], key=lambda place: -table[place]), *row[30:]]
        for row, table in zip(first.tolist(), scores, strict=True)
    ]
    assert stored.search(queries, 300).tolist() == expected
    assert stored.search(queries, 10).tolist() == [row[:10] for row in expected]
    assert stored.search(queries, 10).tolist() != first[:, :10].tolist()


def test_some_of_the_vectors_are_looked_at_again_by_their_own() -> None:
    queries, rows = unit(9, seed=1), unit(300)
    form, places = StoredForm(precision="binary", rescore=30, by="int8"), np.arange(0, 300, 3)
    ranges = Int8Ranges.of(rows)
    picked = QuantisedVectors.store(form, rows, ranges).pick(places)
    alone = QuantisedVectors.store(form, rows[places], ranges)
    assert np.array_equal(picked.search(queries, 100), alone.search(queries, 100))


def test_codes_look_again_by_their_numbers() -> None:
    queries, rows = unit(9, seed=1), unit(300)
    ranges = Int8Ranges.of(rows)
    form = StoredForm(precision="int8", queries="stored", rescore=300)
    decoded = QuantisedVectors.store(StoredForm(precision="int8"), rows, ranges)
    found = QuantisedVectors.store(form, rows, ranges).search(queries, 300)
    assert np.array_equal(found, decoded.search(queries, 300))


def test_long_codes_are_compared_exactly() -> None:
    """Their products sum to more than a float32 has whole numbers for, and differ by one."""
    rows = np.full((2, 4096), 254.5 / 255, np.float32)  # the code 126
    rows[0, 0] = 253.5 / 255
    query = rows[1:].copy()
    query[0, 0] = 129.5 / 255  # the code 1
    ranges = Int8Ranges(np.zeros(4096, np.float32), np.ones(4096, np.float32))
    codes = ranges.encode(rows).astype(int) @ ranges.encode(query)[0].astype(int)
    assert codes[1] - codes[0] == 1
    stored = QuantisedVectors.store(StoredForm(precision="int8", queries="stored"), rows, ranges)
    assert stored.search(query, 2).tolist() == [[1, 0]]


# ── beside the library's search ─────────────────────────────────────────────────────────────────


def stock(queries: Array, rows: Array, precision: Any, count: int, first: int, **more: Any) -> Any:
    found, _, _ = (
        *semantic_search_faiss(
            queries,
            corpus_embeddings=quantize_embeddings(rows, precision, **more),
            corpus_precision=precision,
            top_k=count,
            rescore_multiplier=first // count,
            **more,
        ),
        None,
    )
    return [[hit["corpus_id"] for hit in hits] for hits in found]


def test_int8_with_decoded_documents_is_the_librarys_rescored_search() -> None:
    queries, rows = unit(9, 64, seed=1), unit(120, 64)
    ranges = Int8Ranges.of(rows)
    expected = stock(queries, rows, "uint8", 40, 120, ranges=both(ranges))
    stored = QuantisedVectors.store(StoredForm(precision="int8"), rows, ranges)
    assert stored.search(queries, 40).tolist() == expected


def test_bits_looked_at_again_are_the_librarys_search() -> None:
    queries, rows = unit(9, 64, seed=1), unit(120, 64)
    expected = stock(queries, rows, "ubinary", 40, 120)
    stored = QuantisedVectors.store(StoredForm(precision="binary", rescore=120), rows)
    assert stored.search(queries, 40).tolist() == expected


def test_distances_are_the_librarys() -> None:
    """Of documents whose distances from the query differ, so that no order of equal ones counts."""
    (query,), rows = unit(1, 64, seed=1), unit(3000, 64)
    distances = ((rows > 0) ^ (query > 0)).sum(1)
    rows = rows[np.unique(distances, return_index=True)[1]][::-1]
    bits = quantize_embeddings(query[None], "ubinary")
    found, _ = semantic_search_faiss(
        bits,
        quantize_embeddings(rows, "ubinary"),
        corpus_precision="ubinary",
        top_k=9,
        rescore=False,
    )
    stored = QuantisedVectors.store(StoredForm(precision="binary"), rows)
    expected = [hit["corpus_id"] for hit in found[0]]
    assert stored.search(query[None], 9).tolist() == [expected]


# ── forms ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("form", "label", "size"),
    [
        (StoredForm(), "float32", 1536),
        (StoredForm(size=128), "128", 512),
        (StoredForm(precision="float16"), "float16", 768),
        (StoredForm(precision="int8", size=100), "100 int8", 100),
        (StoredForm(precision="int8", queries="stored"), "int8 codes", 384),
        (StoredForm(precision="binary"), "binary", 48),
        (StoredForm(precision="binary", size=100), "100 binary", 13),
        (StoredForm(precision="binary", queries="float32"), "binary by float32", 48),
        (StoredForm(precision="binary", rescore=40), "binary, 40 again", 48),
        (StoredForm(precision="binary", rescore=40, by="binary"), "binary, 40 by binary", 48),
        (StoredForm(precision="binary", rescore=40, by="int8"), "binary, 40 by int8", 432),
        (StoredForm(precision="int8", size=512), "512 int8", 384),
    ],
)
def test_a_form_has_a_name_and_bytes(form: StoredForm, label: str, size: int) -> None:
    assert (form.label, form.count_bytes(384)) == (label, size)
    assert list(form.faults()) == []


@pytest.mark.parametrize(
    ("form", "word"),
    [
        (StoredForm(queries="stored"), "for int8 and binary"),
        (StoredForm(precision="float16", queries="stored"), "not for float16"),
        (StoredForm(precision="binary", by="int8"), "say how many"),
        (StoredForm(precision="int8", rescore=20), "changes nothing"),
        (StoredForm(rescore=20), "changes nothing"),
        (
            StoredForm(precision="binary", queries="float32", rescore=9, by="binary"),
            "changes nothing",
        ),
    ],
)
def test_options_that_contradict_each_other_are_named(form: StoredForm, word: str) -> None:
    (fault,) = form.faults()
    assert word in fault

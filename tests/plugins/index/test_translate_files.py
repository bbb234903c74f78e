"""The verb `translate` on files of each format: vectors mapped, all else as it was."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from emberge.cli.main import main
from emberge_index.translation.translation_file import Translation
from emberge_index.vectors import pieces, rewrite, translate_verb
from emberge_index.vectors.checks import _sample_rows
from emberge_index.vectors.mapper import Mapper
from emberge_index.vectors.open_vectors import plan_vectors
from safetensors import safe_open
from safetensors.numpy import save_file

from tests.support.translations import expected, vectors, write_translation

ROWS = 1000
# A product of float32 vectors of 24 numbers, divided by its length: far below this; a wrong row is far above.
NEAR = 1e-5


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "BLOCK", 24 * 4 * 64)
    monkeypatch.setattr(rewrite, "BLOCK", 24 * 4 * 64)


@pytest.fixture(params=[24, 16, 40])
def translation(request: pytest.FixtureRequest, tmp_path: Path) -> Translation:
    return write_translation(tmp_path / "by", 24, request.param)


def translated(path: Path, *more: str) -> Path:
    out = path.with_name(f"new{path.suffix}")
    words = ["translate", str(path), "--by", str(path.parent / "by"), "--out", str(out), *more]
    assert main([*words, "--quiet"]) == 0
    marks = {f"{out.name}.emberge.json"} if out.suffix in (".npy", ".faiss", ".index") else set()
    assert {one.name for one in path.parent.iterdir()} == {"by", path.name, out.name, *marks}
    return out


def assert_near(found: Any, wanted: Any, tolerance: float = NEAR) -> None:
    np.testing.assert_allclose(np.asarray(found, np.float64), wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_npy(translation: Translation, tmp_path: Path, dtype: str) -> None:
    given = vectors(ROWS, 24).astype(dtype)
    np.save(tmp_path / "old.npy", given)
    found = np.load(translated(tmp_path / "old.npy"))
    assert found.dtype == dtype
    # Half of the last place of float16, for numbers below 1.
    assert_near(found, expected(translation, given), 2**-11 if dtype == "float16" else NEAR)


def test_vectors_of_a_model_without_normalize_keep_their_lengths(tmp_path: Path) -> None:
    translation = write_translation(tmp_path / "by", 24, unit=False)
    given = vectors(ROWS, 24, unit=False)
    np.save(tmp_path / "old.npy", given)
    assert_near(np.load(translated(tmp_path / "old.npy")), translation.fitted(given), 1e-4)


def test_safetensors_keep_other_tensors_and_metadata(
    translation: Translation, tmp_path: Path
) -> None:
    given, ids = vectors(ROWS, 24), np.arange(ROWS)
    many = {"ids": ids, "vectors": given, "z": np.ones(3, np.float16)}
    save_file(many, tmp_path / "old.safetensors", metadata={"made_by": "me"})
    with safe_open(str(translated(tmp_path / "old.safetensors")), framework="numpy") as file:
        assert set(file.keys()) == {"ids", "vectors", "z"}
        assert (file.get_tensor("ids") == ids).all()
        assert (file.get_tensor("z") == 1).all()
        assert_near(file.get_tensor("vectors"), expected(translation, given))
        assert file.metadata()["made_by"] == "me"
        assert "b" * 64 in file.metadata()["emberge.vectors"]


LISTS = {
    "list": pa.list_(pa.float32()),
    "large list": pa.large_list(pa.float32()),
    "fixed-size list": pa.list_(pa.float32(), 24),
    "halves": pa.list_(pa.float16(), 24),
    "doubles": pa.list_(pa.float64()),
}


@pytest.mark.parametrize("type_", LISTS.values(), ids=LISTS)
def test_parquet_keeps_ids_and_other_columns_in_place(
    translation: Translation, tmp_path: Path, type_: pa.DataType
) -> None:
    numbers = np.dtype(type_.value_type.to_pandas_dtype())
    given = vectors(ROWS, 24).astype(numbers)
    table = pa.table(
        {
            "id": [f"d{row}" for row in range(ROWS)],
            "embedding": pa.array(list(given), type_),
            "tags": [[row % 3] if row % 5 else None for row in range(ROWS)],
        }
    ).replace_schema_metadata({"pandas": "{}"})
    pq.write_table(table, tmp_path / "old.parquet", row_group_size=150)
    found = pq.read_table(translated(tmp_path / "old.parquet", "--column", "embedding"))
    assert found.column_names == table.column_names
    assert found.select(["id", "tags"]).equals(table.select(["id", "tags"]))
    mapped = np.stack(found["embedding"].to_numpy())
    tolerance = 2**-11 if numbers == np.float16 else NEAR
    assert_near(mapped, expected(translation, given), tolerance)
    kind = found.schema.field("embedding").type
    assert type(kind) is type(type_)
    assert kind.value_type == type_.value_type
    assert found.schema.metadata[b"pandas"] == b"{}"
    assert b"b" * 64 in found.schema.metadata[b"emberge.vectors"]


def faiss() -> Any:
    return pytest.importorskip("faiss", reason="faiss-cpu is not installed")


@pytest.mark.parametrize("kind", ["Flat", "HNSW8", "IDMap,Flat", "IDMap2,HNSW8"])
@pytest.mark.parametrize("metric", ["inner product", "l2"])
def test_faiss_answers_from_translated_vectors(
    translation: Translation, tmp_path: Path, kind: str, metric: str
) -> None:
    library = faiss()
    given = vectors(ROWS, 24)
    numbers = [library.METRIC_L2, library.METRIC_INNER_PRODUCT][metric == "inner product"]
    index = library.index_factory(24, kind, numbers)
    ids = np.arange(ROWS) * 7 if "IDMap" in kind else np.arange(ROWS)
    index.add_with_ids(given, ids) if "IDMap" in kind else index.add(given)
    library.write_index(index, str(tmp_path / "old.faiss"))
    found = library.read_index(str(translated(tmp_path / "old.faiss")))
    wanted = expected(translation, given).astype(np.float32)
    assert (found.d, found.ntotal) == (wanted.shape[1], ROWS)
    inner = library.downcast_index(found.index) if "IDMap" in kind else found
    assert_near(inner.reconstruct_n(0, ROWS), wanted)
    _, hits = found.search(wanted[:50], 1)
    # A graph of other vectors may miss some; a flat index misses none.
    least = 25 if "HNSW" in kind else 50
    assert (hits[:, 0] == ids[:50]).sum() >= least


def test_a_graph_that_is_kept_finds_about_as_many_as_one_built_anew(tmp_path: Path) -> None:
    library = faiss()
    library.omp_set_num_threads(1)  # a graph depends on the order in which its links are made
    draw = np.random.default_rng(0)
    turned = np.linalg.qr(draw.normal(size=(24, 24)))[0]
    matrix = turned + 0.1 * draw.normal(size=(24, 24)) / np.sqrt(24)
    made = write_translation(tmp_path / "by", 24)
    made.fitted.matrix[:], made.fitted.offset[:] = matrix, 0
    made.write(tmp_path / "by", {})

    def graph(given: Any) -> Any:
        index = library.IndexHNSWFlat(24, 16, library.METRIC_INNER_PRODUCT)
        index.hnsw.efSearch = 64
        index.add(given)
        return index

    given, asked = vectors(3000, 24), vectors(200, 24, seed=1)
    library.write_index(graph(given), str(tmp_path / "old.faiss"))
    kept = library.read_index(str(translated(tmp_path / "old.faiss")))
    kept.hnsw.efSearch = 64
    new, queries = (expected(made, one).astype(np.float32) for one in (given, asked))
    flat = library.IndexFlatIP(24)
    flat.add(new)
    _, right = flat.search(queries, 10)

    def recall(index: Any) -> float:
        _, found = index.search(queries, 10)
        return (
            float(np.mean([len({*one} & {*two}) for one, two in zip(found, right, strict=True)]))
            / 10
        )

    assert recall(kept) > recall(graph(new)) - 0.03


@pytest.mark.parametrize("kind", ["PQ4x4", "IVF4,SQ8", "IVF4,PQ4x4", "HNSW8_SQ8"])
def test_codes_of_faiss_are_refused_with_what_can_be_done(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    library = faiss()
    write_translation(tmp_path / "by", 24)
    index = library.index_factory(24, kind)
    index.train(vectors(ROWS, 24))
    index.add(vectors(ROWS, 24))
    library.write_index(index, str(tmp_path / "old.faiss"))
    words = ["--by", str(tmp_path / "by"), "--out", str(tmp_path / "new.faiss")]
    assert main(["translate", str(tmp_path / "old.faiss"), *words]) == 2
    said = capsys.readouterr().err
    assert "old.faiss" in said
    assert "`bridge`" in said
    assert not (tmp_path / "new.faiss").exists()


def test_no_row_is_translated_too(tmp_path: Path) -> None:
    write_translation(tmp_path / "by", 24, 16)
    np.save(tmp_path / "old.npy", np.zeros((0, 24), np.float32))
    assert np.load(translated(tmp_path / "old.npy")).shape == (0, 16)
    assert _sample_rows(plan_vectors(tmp_path / "old.npy", dimension=16).rows).shape == (0, 24)


def test_the_verb_loads_no_torch(tmp_path: Path) -> None:
    import subprocess

    write_translation(tmp_path / "by", 24)
    np.save(tmp_path / "old.npy", vectors(10, 24))
    code = (
        "import sys; from emberge.cli.main import main\n"
        "assert main(['translate', 'old.npy', '--by', 'by', '--out', 'new.npy']) == 0\n"
        "assert not {'torch', 'transformers', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


@pytest.mark.parametrize("rank", [1, 5, 11])
def test_a_change_of_low_rank_is_added_to_the_vectors(tmp_path: Path, rank: int) -> None:
    draw = np.random.default_rng(0)
    translation = write_translation(tmp_path / "by", 24, kind="low_rank", rank=rank)
    change = draw.normal(size=(24, rank)) @ draw.normal(size=(rank, 24)) / 24
    translation.fitted.matrix[:] = np.eye(24) + change
    translation.write(tmp_path / "by", {})
    given = vectors(ROWS, 24)
    np.save(tmp_path / "old.npy", given)
    assert_near(np.load(translated(tmp_path / "old.npy")), expected(translation, given))


def test_headers_of_every_npy_version_are_read(tmp_path: Path) -> None:
    translation = write_translation(tmp_path / "by", 24, 16)
    given = vectors(100, 24)
    for version in ((1, 0), (2, 0), (3, 0)):
        path = tmp_path / "old.npy"
        with path.open("wb") as file:
            np.lib.format.write_array(file, given, version=version)
        out = translated(path)
        assert_near(np.load(out), expected(translation, given))
        out.unlink()


def test_one_column_among_several_tensors_is_rewritten(tmp_path: Path) -> None:
    translation = write_translation(tmp_path / "by", 24, 16)
    given = {"a": vectors(50, 24), "b": vectors(70, 24, seed=3), "c": np.ones(5)}
    save_file(given, tmp_path / "old.safetensors")
    with safe_open(
        str(translated(tmp_path / "old.safetensors", "--column", "b")), framework="numpy"
    ) as file:
        assert (file.get_tensor("a") == given["a"]).all()
        assert (file.get_tensor("c") == 1).all()
        assert_near(file.get_tensor("b"), expected(translation, given["b"]))


def test_parquet_keeps_codec_and_row_groups_are_blocks(tmp_path: Path) -> None:
    write_translation(tmp_path / "by", 24, 16)
    table = pa.table({"id": ["x"] * 1000, "v": list(vectors(1000, 24))})
    pq.write_table(table, tmp_path / "old.parquet", row_group_size=300, compression="gzip")
    found = pq.ParquetFile(translated(tmp_path / "old.parquet")).metadata
    assert found.row_group(0).column(0).compression == "GZIP"
    assert found.row_group(0).num_rows == 64
    assert found.num_rows == 1000
    columns = {found.row_group(0).column(i).path_in_schema: i for i in range(found.num_columns)}
    place = next(i for name, i in columns.items() if name.startswith("v."))
    assert found.row_group(0).column(place).compression == "UNCOMPRESSED"


def test_progress_is_a_line_on_a_terminal_and_now_and_then_in_a_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(translate_verb.time, "monotonic", lambda: clock[0])

    def shown(*, terminal: bool, quiet: bool = False) -> str:
        clock[0] = 100.0
        monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
        progress = translate_verb._RewriteProgress(quiet=quiet)
        for later, done in ((1.0, 100), (2.0, 300), (40.0, 1100)):
            clock[0] = 100.0 + later
            progress(done, 2000)
        progress.end()
        return capsys.readouterr().err

    assert shown(terminal=False) == "1,100 of 2,000 vectors (55%), 26 a second, 35 s left\n"
    lines = shown(terminal=True).split("\r")[1:]
    assert lines[0] == "100 of 2,000 vectors (5%), 0 a second\x1b[K"
    assert lines[1] == "300 of 2,000 vectors (15%), 200 a second, 8 s left\x1b[K"
    assert lines[-1] == "\x1b[K"
    assert shown(terminal=True, quiet=True) == ""
    assert shown(terminal=False, quiet=True) == ""


@pytest.mark.parametrize(("dtype", "own"), [("f2", "f4"), ("f4", "f4"), ("f8", "f8")])
def test_vectors_are_mapped_in_the_numbers_of_their_file(
    tmp_path: Path, dtype: str, own: str
) -> None:
    translation = write_translation(tmp_path / "by", 24, 16, unit=False)
    given = vectors(64, 24, unit=False).astype(dtype)
    mapped = Mapper(translation, np.dtype(dtype))(given)
    matrix, offset = (
        one.astype(own) for one in (translation.fitted.matrix, translation.fitted.offset)
    )
    np.testing.assert_array_equal(
        mapped.vectors, (given.astype(own) @ matrix + offset).astype(dtype)
    )
    assert (mapped.finite, mapped.empty) == (True, 0)


@pytest.mark.parametrize("suffix", [".npy", ".faiss"])
def test_vectors_that_were_translated_are_refused_by_the_mark_beside_them(
    tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_translation(tmp_path / "by", 24)
    old = tmp_path / f"old{suffix}"
    if suffix == ".npy":
        np.save(old, vectors(ROWS, 24))
    else:
        faiss = pytest.importorskip("faiss")
        index = faiss.IndexFlatIP(24)
        index.add(vectors(ROWS, 24))
        faiss.write_index(index, str(old))
    new = translated(old)
    words = ["--by", str(tmp_path / "by"), "--quiet", "--any-model", "--out"]
    assert main(["translate", str(new), *words, str(tmp_path / f"twice{suffix}")]) == 2
    assert "so it is translated already" in capsys.readouterr().err
    assert not (tmp_path / f"twice{suffix}").exists()
    # The mark is of those bytes: of other vectors under the same name, it claims nothing.
    old.rename(new)
    assert main(["translate", str(new), *words, str(tmp_path / f"twice{suffix}")]) == 0

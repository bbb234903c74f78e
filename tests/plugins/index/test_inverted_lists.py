"""faiss indexes of inverted lists, which a translation builds again from the vectors that they hold."""

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
ROWS, LISTS = 600, 8
Capture = pytest.CaptureFixture[str]


def write_index(path: Path, kind: str, given: NDArray[Any], metric: int) -> NDArray[np.int64]:
    """Write an index of vectors and return their ids."""
    index = faiss.index_factory(24, kind, metric)
    inner = faiss.extract_index_ivf(index)
    inner.cp.min_points_per_centroid, inner.nprobe = 1, 3
    index.train(vectors(400, 24, seed=9))
    ids = np.arange(len(given)) * (7 if "IDMap" in kind else 1)
    index.add_with_ids(given, ids)
    faiss.write_index(index, str(path))
    return ids


def translate(folder: Path, out: str = "new.faiss") -> int:
    words = ["--by", str(folder / "by"), "--out", str(folder / out), "--quiet"]
    return main(["translate", str(folder / "old.faiss"), *words])


@pytest.mark.parametrize("metric", [faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2])
@pytest.mark.parametrize(
    "kind", ["IVF8,Flat", "IVF8_HNSW4,Flat", "IDMap,IVF8,Flat", "IDMap2,IVF8,Flat"]
)
def test_an_index_has_new_centres_and_all_else_of_the_old(
    tmp_path: Path, kind: str, metric: int
) -> None:
    translation = write_translation(tmp_path / "by", 24, 16)
    given = vectors(ROWS, 24)
    ids = write_index(tmp_path / "old.faiss", kind, given, metric)
    assert translate(tmp_path) == 0
    index = faiss.read_index(str(tmp_path / "new.faiss"))
    wanted = expected(translation, given).astype(np.float32)
    inner = faiss.downcast_index(index.index) if "IDMap" in kind else index
    assert (index.d, index.ntotal, index.metric_type) == (16, ROWS, metric)
    assert (inner.nlist, inner.nprobe) == (LISTS, 3)
    assert type(index) is type(faiss.read_index(str(tmp_path / "old.faiss")))
    centres = faiss.downcast_index(inner.quantizer)
    assert inner.invlists.imbalance_factor() < 2, "vectors are spread over all lists"
    assert isinstance(centres, faiss.IndexHNSWFlat) == ("HNSW" in kind)
    assert "HNSW" not in kind or centres.hnsw.nb_neighbors(1) == 4
    # A vector lies in the list of the centre that is nearest to it, so one list is enough to find it.
    inner.nprobe = 1
    scores, hits = index.search(wanted, 1)
    assert (hits[:, 0] == ids).mean() > (0.95 if "HNSW" in kind else 0.999)
    best = 1.0 if metric == faiss.METRIC_INNER_PRODUCT else 0.0
    np.testing.assert_allclose(scores[hits[:, 0] == ids], best, atol=1e-5)


def test_an_index_is_built_again_byte_for_byte(tmp_path: Path) -> None:
    write_translation(tmp_path / "by", 24, 16)
    write_index(tmp_path / "old.faiss", "IVF8,Flat", vectors(ROWS, 24), faiss.METRIC_L2)
    assert translate(tmp_path) == translate(tmp_path, "again.faiss") == 0
    again, new = (tmp_path / name for name in ("again.faiss", "new.faiss"))
    assert again.read_bytes() == new.read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_blocks_that_end_within_a_list_are_all_of_the_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emberge_index.vectors.pieces.BLOCK", 1)  # 64 rows a block
    translation = write_translation(tmp_path / "by", 24, 16)
    given = vectors(ROWS, 24)
    write_index(tmp_path / "old.faiss", "IVF8,Flat", given, faiss.METRIC_L2)
    assert translate(tmp_path) == 0
    index = faiss.read_index(str(tmp_path / "new.faiss"))
    index.make_direct_map()
    wanted = expected(translation, given)
    np.testing.assert_allclose(index.reconstruct_n(0, ROWS), wanted, atol=1e-5)


@pytest.mark.parametrize("kind", ["IVF8,Flat", "IDMap2,IVF8,Flat"])
def test_an_order_has_the_ids_of_an_index(tmp_path: Path, kind: str) -> None:
    write_translation(tmp_path / "by", 24, 16)
    given = vectors(ROWS, 24)
    ids = write_index(tmp_path / "old.faiss", kind, given, faiss.METRIC_L2)
    np.save(tmp_path / "old.npy", given)
    orders = []
    for name in ("old.faiss", "old.npy"):
        out = tmp_path / f"order-{name}.npy"
        assert (
            main(["refresh", str(tmp_path / name), "--by", str(tmp_path / "by"), "--out", str(out)])
            == 0
        )
        orders.append(np.load(out))
    assert orders[0].tolist() == ids[orders[1]].tolist()


def test_a_row_that_is_not_finite_is_named_by_its_id(tmp_path: Path, capsys: Capture) -> None:
    write_translation(tmp_path / "by", 24, 16)
    given = vectors(ROWS, 24)
    write_index(tmp_path / "old.faiss", "IDMap2,IVF8,Flat", given, faiss.METRIC_L2)
    content = (tmp_path / "old.faiss").read_bytes()
    (tmp_path / "old.faiss").write_bytes(
        content.replace(given[20].tobytes(), (given[20] * np.nan).tobytes())
    )
    assert translate(tmp_path) == 2
    assert "id 140" in capsys.readouterr().err
    assert {one.name for one in tmp_path.iterdir()} == {"by", "old.faiss"}


def test_vectors_that_faiss_left_out_when_they_were_added_are_counted(
    tmp_path: Path, capsys: Capture
) -> None:
    write_translation(tmp_path / "by", 24, 16)
    given = vectors(ROWS, 24)
    given[20, 3] = np.inf
    write_index(tmp_path / "old.faiss", "IVF8,Flat", given, faiss.METRIC_L2)
    assert translate(tmp_path) == 2
    assert "599 vectors of the 600" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [10**9, -1])
@pytest.mark.parametrize("kind", ["IDMap,IVF8,Flat", "IVF8,Flat"])
def test_ids_outside_of_their_map_are_refused(
    tmp_path: Path, kind: str, wrong: int, capsys: Capture
) -> None:
    write_translation(tmp_path / "by", 24, 16)
    path = tmp_path / "old.faiss"
    write_index(path, kind, vectors(ROWS, 24), faiss.METRIC_L2)
    index = faiss.read_index(str(path))
    inner = faiss.extract_index_ivf(index)
    if "IDMap" not in kind:
        inner.make_direct_map()
        faiss.write_index(index, str(path))
    lists = inner.invlists
    ids = np.array(faiss.rev_swig_ptr(lists.get_ids(0), lists.list_size(0)))
    content = path.read_bytes()
    assert content.count(ids.tobytes()) == 1
    path.write_bytes(content.replace(ids.tobytes(), np.array([wrong, *ids[1:]]).tobytes()))
    assert translate(tmp_path) == 2
    assert f"{wrong:,}" in capsys.readouterr().err
    order = ["--by", str(tmp_path / "by"), "--out", str(tmp_path / "order.npy")]
    assert main(["refresh", str(path), *order]) == 2
    assert f"{wrong:,}" in capsys.readouterr().err
    assert {one.name for one in tmp_path.iterdir()} == {"by", "old.faiss"}


def test_a_graph_of_centres_with_endless_links_is_refused(tmp_path: Path, capsys: Capture) -> None:
    write_translation(tmp_path / "by", 24, 16)
    path = tmp_path / "old.faiss"
    write_index(path, "IVF8_HNSW16,Flat", vectors(ROWS, 24), faiss.METRIC_L2)
    index = faiss.read_index(str(path))  # what is taken from it lives as long as it
    graph = faiss.downcast_index(index.quantizer).hnsw
    ends = faiss.vector_to_array(graph.cum_nneighbor_per_level)
    content = path.read_bytes()
    assert content.count(ends.tobytes()) == 1
    longer = np.concatenate([ends[:2], ends[2:] + 2**28])
    path.write_bytes(content.replace(ends.tobytes(), longer.astype(ends.dtype).tobytes()))
    assert translate(tmp_path) == 2
    assert "links" in capsys.readouterr().err
    assert {one.name for one in tmp_path.iterdir()} == {"by", "old.faiss"}


def test_fewer_vectors_than_lists_are_refused_before_anything_is_written(
    tmp_path: Path, capsys: Capture
) -> None:
    write_translation(tmp_path / "by", 24, 16)
    write_index(tmp_path / "old.faiss", "IVF8,Flat", vectors(7, 24), faiss.METRIC_L2)
    assert translate(tmp_path) == 2
    error = capsys.readouterr().err
    assert "7 vectors in 8 lists" in error
    assert "fewer lists" in error


def test_without_faiss_the_extra_is_named(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_translation(tmp_path / "by", 24, 16)
    write_index(tmp_path / "old.faiss", "IVF8,Flat", vectors(ROWS, 24), faiss.METRIC_L2)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "faiss" else find(name)
    )
    assert translate(tmp_path) == 2
    assert "emberge[index]" in capsys.readouterr().err

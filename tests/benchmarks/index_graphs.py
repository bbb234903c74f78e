"""Recall of HNSW graphs over translated vectors, by servers that know nothing of emberge: faiss and hnswlib.

    python -m tests.benchmarks.index_graphs BY OLD NEW CATALOGUE [STORE]

BY is the result of a step `translate`, OLD and NEW are the folders of its models, CATALOGUE has sets of
retrieval, whose documents are indexed and whose queries are asked; STORE is a cache of embeddings, such as
OUT/.store. It needs `pip install faiss-cpu hnswlib`.

Each library builds a graph of the old vectors, in which the vectors are then exchanged for translated ones
while the links stay (faiss by `emberge translate index.faiss`, hnswlib by the same rows in its file), and one
of the translated vectors. recall@10 is against an exact search of the vectors that the graph has, by the
queries of the model that they are for.
"""

from __future__ import annotations

import argparse
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from emberge import RetrievalData
from emberge.data import load_eval_set, pick_eval_sets
from emberge.encoding import EmbeddingStore
from emberge.numerics import nearest_rows, overlap
from emberge_data import JsonLines
from emberge_encoder import TextEncoder
from emberge_index import Mapper, Translation, read_translation
from numpy.typing import NDArray

Matrix = NDArray[np.float32]
LENGTH, LINKS, BUILT_WITH = 64, 16, 100
LOOKED_AT = (10, 20, 40, 80, 160)
SEEDS = (1, 2, 3)


def texts_of(catalogue: Path, only: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the distinct documents and queries of a catalogue's sets of retrieval."""
    documents: dict[str, None] = {}
    queries: dict[str, None] = {}
    for one in pick_eval_sets(catalogue, only):
        if one.task == "retrieval":
            data = load_eval_set(one, readers=(JsonLines(),))
            assert isinstance(data, RetrievalData)
            documents |= dict.fromkeys(data.corpus.values())
            queries |= dict.fromkeys(data.queries.values())
    return list(documents), list(queries)


def embedded(folder: Path, fingerprint: str, store: Path, *texts: list[str]) -> list[Matrix]:
    backbone = TextEncoder()
    encoder = backbone.load(folder, device="cpu", dtype="float32")
    kept = EmbeddingStore(store, encoder, model=f"{fingerprint} {backbone!r}")
    return [kept.embed(some, max_length=LENGTH)[:] for some in texts]


class Faiss:
    """An HNSW index of faiss."""

    suffix = "faiss"

    def build(self, rows: Matrix, seed: int) -> Any:
        import faiss

        faiss.omp_set_num_threads(1)
        index = faiss.IndexHNSWFlat(rows.shape[1], LINKS)
        index.hnsw.efConstruction = BUILT_WITH
        index.hnsw.rng = faiss.RandomGenerator(seed)
        index.add(rows)
        return index

    def exchanged(self, index: Any, translated: Matrix, by: Path, folder: Path) -> Any:
        import faiss

        faiss.write_index(index, str(folder / "old.faiss"))
        words = ["translate", str(folder / "old.faiss"), "--by", str(by), "--quiet"]
        (folder / "new.faiss").unlink(missing_ok=True)
        subprocess.run(
            [sys.executable, "-m", "emberge", *words, "--out", str(folder / "new.faiss")],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        found = faiss.read_index(str(folder / "new.faiss"))
        stored = faiss.downcast_index(found.storage).reconstruct_n(0, len(translated))
        np.testing.assert_allclose(stored, translated, rtol=0, atol=1e-5)
        return found

    def search(self, index: Any, queries: Matrix, looked_at: int) -> NDArray[np.int64]:
        index.hnsw.efSearch = looked_at
        return np.asarray(index.search(queries, 10)[1], np.int64)


class Hnswlib:
    """An index of hnswlib."""

    suffix = "hnswlib"

    def build(self, rows: Matrix, seed: int) -> Any:
        import hnswlib

        index = hnswlib.Index("ip", rows.shape[1])
        index.init_index(len(rows), M=LINKS, ef_construction=BUILT_WITH, random_seed=seed)
        index.add_items(rows, num_threads=1)
        return index

    def exchanged(self, index: Any, translated: Matrix, by: Path, folder: Path) -> Any:
        """Return the index with other vectors at the places in its file where it has its own."""
        import hnswlib

        path = folder / "index.hnswlib"
        index.save_index(str(path))
        data = bytearray(path.read_bytes())
        # Six sizes, of which the fourth is a point's; then where its label and its vector begin in it.
        _, _, count, size, label, vector = struct.unpack_from("<6Q", data)
        header = struct.calcsize("<6QiI3QdQ")
        points = np.frombuffer(data, np.uint8, count * size, header).reshape(count, size)
        rows = points[:, label : label + 8].copy().view(np.uint64)[:, 0]
        new = np.ascontiguousarray(translated[rows]).view(np.uint8)
        points[:, vector : vector + new.shape[1]] = new
        path.write_bytes(data)
        found = hnswlib.Index("ip", translated.shape[1])
        found.load_index(str(path))
        np.testing.assert_array_equal(found.get_items(list(range(count))), translated)
        return found

    def search(self, index: Any, queries: Matrix, looked_at: int) -> NDArray[np.int64]:
        index.set_ef(looked_at)
        return np.asarray(index.knn_query(queries, 10, num_threads=1)[0], np.int64)


def recalls(kind: Any, index: Any, queries: Matrix, exact: NDArray[np.int64]) -> list[float]:
    return [overlap(kind.search(index, queries, looked_at), exact) for looked_at in LOOKED_AT]


def measure(kind: Any, old: list[Matrix], new: list[Matrix], translated: Matrix, by: Path) -> None:
    arms = {
        "old vectors, old queries": (old[0], old[1]),
        "translated, rebuilt": (translated, new[1]),
        "translated, graph kept": (translated, new[1]),
        "new vectors, rebuilt": (new[0], new[1]),
    }
    exact = {arm: nearest_rows(queries, rows, 10) for arm, (rows, queries) in arms.items()}
    found: dict[str, list[list[float]]] = {arm: [] for arm in arms}
    with tempfile.TemporaryDirectory() as name:
        for seed in SEEDS:
            for arm, (rows, queries) in arms.items():
                if arm == "translated, graph kept":
                    index = kind.exchanged(kind.build(old[0], seed), rows, by, Path(name))
                else:
                    index = kind.build(rows, seed)
                found[arm].append(recalls(kind, index, queries, exact[arm]))
    for arm, several in found.items():
        means, spread = np.mean(several, 0), np.ptp(several, 0)
        cells = "  ".join(f"{m:6.1%} ±{s / 2:.1%}" for m, s in zip(means, spread, strict=True))
        print(f"{kind.suffix:8} {arm:26} {cells}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("by", "old", "new", "catalogue"):
        parser.add_argument(name, type=Path)
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    translation: Translation = read_translation(options.by)
    texts = texts_of(options.catalogue, options.only)
    with tempfile.TemporaryDirectory() as name:
        store = options.store or Path(name)
        header = translation.header
        old = embedded(options.old, header.source.fingerprint, store, *texts)
        new = embedded(options.new, header.target.fingerprint, store, *texts)
    translated, _ = Mapper(translation, np.dtype(np.float32))(old[0])
    print(f"{len(texts[0]):,} documents, {len(texts[1]):,} queries; graphs by {LINKS} links")
    same = nearest_rows(new[1], new[0], 10)
    kept = overlap(nearest_rows(new[1], old[0], 10), same)
    print(f"shared with the first ten of new vectors: old {kept:.1%}", end="")
    print(
        f", translated {overlap(nearest_rows(new[1], translated, 10), same):.1%} (exact searches)"
    )
    print(f"{'recall@10, looked at':35} {'  '.join(f'{ef:>12}' for ef in LOOKED_AT)}")
    for kind in (Faiss(), Hnswlib()):
        measure(kind, old, new, translated, options.by)


if __name__ == "__main__":
    main()

"""Documents that a retriever found, kept in a store, so that several searches find them once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from emberge.files import fill_once, read_json, write_json

from emberge_mteb.kind_search import Hits

_NAMES = "names.json"


def keep_hits(store: Path, content: str, find: Callable[[], Hits]) -> Hits:
    """Return what `find` returns, or what it returned earlier; `content` identifies all that decides it."""
    folder = store / "hits" / hashlib.sha256(content.encode()).hexdigest()[:32]
    return _read_hits(fill_once(folder, lambda side: _write_hits(side, find())))


def _write_hits(folder: Path, hits: Hits) -> None:
    import numpy as np

    places: dict[str, int] = {}
    for scores in hits.values():
        for name in scores:
            places.setdefault(name, len(places))
    rows = [places[name] for scores in hits.values() for name in scores]
    np.save(folder / "rows.npy", np.array(rows, np.int32))
    values = [score for scores in hits.values() for score in scores.values()]
    np.save(folder / "scores.npy", np.array(values, np.float64))
    counts = {query: len(scores) for query, scores in hits.items()}
    write_json(folder / _NAMES, {"documents": list(places), "counts": counts})


def _read_hits(folder: Path) -> Hits:
    import numpy as np

    names = read_json(folder / _NAMES)
    documents = names["documents"]
    rows, scores = (np.load(folder / f"{name}.npy").tolist() for name in ("rows", "scores"))
    hits: Hits = {}
    start = 0
    for query, count in names["counts"].items():
        part = slice(start, start + count)
        hits[query] = {
            documents[row]: score for row, score in zip(rows[part], scores[part], strict=True)
        }
        start += count
    return hits

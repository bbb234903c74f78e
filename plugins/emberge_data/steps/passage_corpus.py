"""Corpora: files of passages, maybe with ids and titles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import BadRow, DataError, Reader

if TYPE_CHECKING:
    from numpy.typing import NDArray


IDS = ("_id", "id")


def read_corpora(paths: Sequence[Path], readers: Sequence[Reader]) -> Iterator[str]:
    """Yield the passages of files in the layout of BEIR: `text`, with a `title` before it where there is one.

    Raises:
        DataError: for a row without text, and, at the end, for an `_id` that two different passages have.
    """
    from emberge.wording import printable

    ids, texts, places = bytearray(), bytearray(), []
    for path in paths:
        for number, row in _rows(path, readers):
            text = _text(row, f"{printable(path.name)}:{number}")
            name = _id(row, f"{printable(path.name)}:{number}")
            if name is not None:
                from emberge.hashes import text_keys

                ids += text_keys((name,))
                texts += text_keys((text,))
                places.append((path, number))
            yield text
    _refuse_clashes(ids, texts, places)


def _rows(path: Path, readers: Sequence[Reader]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    from emberge.data import find_reader
    from emberge.wording import printable

    for number, row in find_reader(path, readers).rows(path):
        if isinstance(row, BadRow):
            raise DataError(f"{printable(path.name)}:{number}: {printable(row.message)}")
        yield number, row


def _text(row: Mapping[str, Any], where: str) -> str:
    from emberge.wording import printable

    text, title = row.get("text"), row.get("title")
    title = "" if title is None else title
    if not isinstance(text, str) or not isinstance(title, str):
        there = printable(", ".join(map(str, row)), 200)
        raise DataError(
            f"{where}: a passage needs text in the column `text`, and in `title` if it is there (columns: "
            f"{there})"
        )
    joined = f"{title} {text}".strip()
    if not joined:
        raise DataError(f"{where}: the text is empty or only white space; fill or remove it")
    return joined


def _id(row: Mapping[str, Any], where: str) -> str | None:
    found = next((row[key] for key in IDS if row.get(key) is not None), None)
    if isinstance(found, bool) or not isinstance(found, str | int | None):
        raise DataError(f"{where}: the id is text or a whole number, not a {type(found).__name__}")
    return None if found is None else str(found)


def _refuse_clashes(ids: bytearray, texts: bytearray, places: Sequence[tuple[Path, int]]) -> None:
    """Refuse an id that two passages have."""
    import numpy as np

    if not places:
        return
    names: NDArray[Any] = np.frombuffer(bytes(ids), "V16")
    contents = np.frombuffer(bytes(texts), "V16")
    _, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    clash = np.flatnonzero(contents != contents[first[inverse]])
    if len(clash):
        (one, row), (other, line) = places[first[inverse[clash[0]]]], places[clash[0]]
        raise DataError(
            f"{other.name}:{line}: the id was given to another passage before, at {one.name}:{row} "
            f"({len(clash):,} such passages); give every passage an id of its own, or leave ids out"
        )

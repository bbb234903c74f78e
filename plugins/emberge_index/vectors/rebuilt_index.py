"""Reading and writing of faiss indexes that are built again from mapped vectors, with ids or without."""

from __future__ import annotations

import errno
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import DataError, RecipeError
from emberge.wording import printable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BUILD_AGAIN = "build it again from its float vectors"


def load_faiss() -> Any:
    """Return faiss as `Any`: its type stubs lack the methods that it adds when it is imported."""
    import faiss

    return faiss


def read_faiss_index(path: Path, description: str) -> Any:
    """Return an index of a file, which is `description`.

    Raises:
        DataError: if the file has no index, or is damaged.
        RecipeError: if faiss is not installed.
    """
    if importlib.util.find_spec("faiss") is None:
        raise RecipeError(
            f"{path}: {description} is built again by faiss: pip install 'emberge[index]'"
        )
    try:
        return load_faiss().read_index(str(path))
    except (RuntimeError, MemoryError) as error:
        raise DataError(
            f"{path}: is no faiss index, or damaged ({printable(error, 200)}); {BUILD_AGAIN}"
        ) from error


def find_inner(outer: Any) -> Any:
    """Return the index itself, or the one that a map of ids wraps."""
    faiss = load_faiss()
    is_wrapper = isinstance(outer, faiss.IndexIDMap | faiss.IndexIDMap2)
    return faiss.downcast_index(outer.index) if is_wrapper else outer


def translate_ids(outer: Any, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ids by which a search answers, of places in the index that `outer` wraps or is."""
    if find_inner(outer) is outer:
        return places
    ids: NDArray[np.int64] = load_faiss().vector_to_array(outer.id_map)[places]
    return ids


def wrap_as(outer: Any, empty: Any) -> Any:
    """Return an empty index in a map with the ids of `outer`, or the index itself if that has no map."""
    if find_inner(outer) is outer:
        return empty
    faiss = load_faiss()
    whole = type(outer)(empty)  # it takes only an empty index
    faiss.copy_array_to_vector(faiss.vector_to_array(outer.id_map), whole.id_map)
    return whole


def write_faiss_index(index: Any, path: Path) -> None:
    """Write an index.

    Raises:
        OSError: if it cannot be written.
    """
    try:
        load_faiss().write_index(index, str(path))
    except RuntimeError as error:
        raise OSError(errno.EIO, printable(error, 200)) from error

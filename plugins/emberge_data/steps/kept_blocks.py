"""An array of rows in files, computed block by block and kept for a later call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Rows of a block, which is computed at once; a search reads all documents once for each block.
BLOCK = 16384


class KeptBlocks:
    """An array in files of BLOCK rows each, mapped into memory."""

    def __init__(
        self,
        folder: Path,
        size: int,
        compute: Callable[[NDArray[np.int64]], NDArray[Any]],
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Compute the missing blocks of an array with `size` rows; `compute` gets row indices."""
        import numpy as np

        folder.mkdir(parents=True, exist_ok=True)
        self._blocks: list[NDArray[Any]] = []
        for first in range(0, size, BLOCK):
            if progress is not None:
                progress(first, size)
            path = folder / f"{first // BLOCK}.npy"
            if not path.is_file():
                _write_array(path, compute(np.arange(first, min(first + BLOCK, size))))
            self._blocks.append(np.load(path, mmap_mode="r"))

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return iter(self._blocks)

    def __getitem__(self, row: int) -> NDArray[Any]:
        values: NDArray[Any] = self._blocks[row // BLOCK][row % BLOCK]
        return values


def _write_array(path: Path, values: NDArray[Any]) -> None:
    import numpy as np
    from emberge.files import replace_file

    with replace_file(path) as side, side.open("wb") as file:
        np.save(file, values)

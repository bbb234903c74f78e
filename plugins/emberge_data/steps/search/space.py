"""Space of one teacher: the vectors of queries and documents, and the cosines between them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from emberge_data.steps.search.exact import cosines, slack, squared_lengths, unit_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


# Vectors that are looked at together, in bytes of float32: what is computed of them takes four times that.
PIECE = 16 << 20


class StoredVectors(Protocol):
    """Vectors on disk or in memory: float32 [n, d], indexed by row number."""

    def __len__(self) -> int: ...

    def __getitem__(self, places: Any) -> NDArray[np.float32]: ...


class Side:
    """Vectors of one side of a search with their lengths, on the device where they are compared."""

    def __init__(self, vectors: StoredVectors, device: str = "cpu") -> None:
        self.vectors = vectors
        self.device = device

    def __len__(self) -> int:
        return len(self.vectors)

    @cached_property
    def dimension(self) -> int:
        """Size of a vector."""
        return int(self.vectors[0:1].shape[1])

    @cached_property
    def piece(self) -> int:
        """Number of vectors to load at a time."""
        return max(1, PIECE // (4 * self.dimension))

    @cached_property
    def lengths(self) -> Tensor:
        """Squared length of every vector, float64 [n], kept in memory."""
        import torch

        squared = torch.empty(len(self), dtype=torch.float64, device=self.device)
        for first in range(0, len(self), self.piece):
            last = min(first + self.piece, len(self))
            squared[first:last] = squared_lengths(self.at(slice(first, last)))
        return squared

    def at(self, places: NDArray[np.int64] | slice) -> Tensor:
        """Return the float32 vectors at these indices [n, d]."""
        import numpy as np
        import torch

        vectors = np.array(self.vectors[places], dtype=np.float32, order="C")
        return torch.from_numpy(vectors).to(self.device)

    def units(self, places: NDArray[np.int64] | slice) -> Tensor:
        """Return the vectors at these indices scaled to length 1, float32 [n, d]."""
        import numpy as np
        import torch

        if isinstance(places, slice):
            places = np.arange(*places.indices(len(self)))
        vectors = torch.empty((len(places), self.dimension), device=self.device)
        for first in range(0, len(places), self.piece):
            part = places[first : first + self.piece]
            at = torch.from_numpy(part).to(self.device)
            vectors[first : first + self.piece] = unit_rows(self.at(part), self.lengths[at])
        return vectors


class Space:
    """Embedding space of one teacher: its vectors of queries and documents."""

    def __init__(
        self, queries: StoredVectors, documents: StoredVectors, device: str = "cpu"
    ) -> None:
        self.queries = Side(queries, device)
        self.documents = Side(documents, device)
        self.device = device

    @property
    def slack(self) -> float:
        """Largest difference between a float32 product of unit vectors and their exact cosine."""
        return slack(self.queries.dimension)

    def scores(
        self, queries: NDArray[np.int64], documents: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the exact cosines of queries [n] and documents, [n] or [n, k], by their indices."""
        import numpy as np

        document_places = documents if documents.ndim == 2 else documents[:, None]
        cosines = np.empty(document_places.shape, dtype=np.float64)
        rows = max(1, self.queries.piece // max(1, document_places.shape[1]))
        for first in range(0, len(queries), rows):
            part = slice(first, first + rows)
            cosines[part] = (
                self._compute_cosines(queries[part], document_places[part]).cpu().numpy()
            )
        return cosines.reshape(documents.shape)

    def _compute_cosines(self, queries: NDArray[np.int64], documents: NDArray[np.int64]) -> Tensor:
        import torch

        flat = documents.reshape(-1)
        query_places, document_places = (
            torch.from_numpy(places).to(self.device) for places in (queries, flat)
        )
        right = self.documents.at(flat).reshape(*documents.shape, self.documents.dimension)
        return cosines(
            self.queries.at(queries)[:, None],
            right,
            self.queries.lengths[query_places][:, None],
            self.documents.lengths[document_places].reshape(documents.shape),
        )

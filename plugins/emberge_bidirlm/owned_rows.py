"""Embeddings of a joined vocabulary, whose rows come from several models."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from emberge.tensor_files import DerivedTensor, RowReader, TensorSpec

if TYPE_CHECKING:
    from torch import Tensor

_NO_OWNER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedRows(DerivedTensor):
    """Embeddings whose rows come from the first model that has the row's token.

    `origins` are the models' embeddings. Row i is row `places[i]` of `origins[owners[i]]`, or zeros if
    `owners[i]` is -1.
    """

    origins: tuple[TensorSpec, ...]
    owners: array[int] = field(compare=False, repr=False)
    places: array[int] = field(compare=False, repr=False)

    def compute(self, reader: RowReader, rows: range, into: Tensor) -> None:
        width = into.shape[1]
        start = rows.start
        while start < rows.stop:
            end = self._find_run_end(start, rows.stop)
            part = into[start - rows.start : end - rows.start]
            if self.owners[start] == _NO_OWNER:
                part.zero_()
            else:
                origin = self.origins[self.owners[start]]
                reader.read(origin, self.places[start] * width, part.view(-1))
            start = end

    def _find_run_end(self, start: int, stop: int) -> int:
        """Return the end of the run of rows from `start` that one read can fill."""
        owner, row = self.owners[start], self.places[start]
        end = start + 1
        while (
            end < stop
            and self.owners[end] == owner
            and (owner == _NO_OWNER or self.places[end] == row + end - start)
        ):
            end += 1
        return end


def build_owned_rows(
    sources: Sequence[tuple[TensorSpec, Sequence[int]]], row_count: int
) -> TensorSpec:
    """Return the composed model's embeddings: the first model's, unchanged if it has all tokens.

    `sources` are each model's embeddings, and for each row of the result the model's own row, -1 for none.
    """
    embedding, row_map = sources[0]
    if list(row_map) == list(range(embedding.shape[0])):
        return embedding
    owners = array("b", [_NO_OWNER]) * row_count
    places = array("q", [0]) * row_count
    for row in range(row_count):
        for owner, (_, source_rows) in enumerate(sources):
            if source_rows[row] >= 0:
                owners[row], places[row] = owner, source_rows[row]
                break
    return OwnedRows(
        embedding.name,
        (row_count, *embedding.shape[1:]),
        embedding.dtype,
        embedding.file,
        embedding.offset,
        origins=tuple(origin for origin, _ in sources),
        owners=owners,
        places=places,
    )

"""Vocabulary of a composed model: the text model's, and the tokens that only a specialist has."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from emberge import CheckpointError
from emberge.merging import TokenPlan, VocabularyPolicy, align_tokens
from emberge.model_folder import Checkpoint
from emberge.tensor_files import DerivedTensor, RowReader, TensorSpec
from emberge.tensor_names import Names

if TYPE_CHECKING:
    from torch import Tensor


_NOBODY = -1
_REMEDY = (
    "specialists keep their tokens where they are, so choose models that agree on that id, or give the token "
    "of one of them another id"
)


def join_tokens(models: Mapping[str, Checkpoint], names: Mapping[str, Names]) -> TokenPlan:
    """Plan the vocabulary of a composed model; the first of `models` is the text model.

    Every token stays on its id. `names` has the tensors of the models whose weights are here.

    Raises:
        CheckpointError: for two tokens on one id, or one token on two, naming both.
    """
    first = next(iter(models))
    plan = align_tokens(
        VocabularyPolicy(),
        models[first],
        models,
        names,
        names.get(first),
        models=list(models),
        remedy=_REMEDY,
    )
    if plan.problems:
        raise CheckpointError("\n".join(map(str, plan.problems)))
    return plan


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedRows(DerivedTensor):
    """Embeddings of which each row is that of the first model that has the row's token.

    `origins` are the models' embeddings; a row is row `places` of the one numbered `owners`, and zero where
    that is -1.
    """

    origins: tuple[TensorSpec, ...]
    owners: array[int] = field(compare=False, repr=False)
    places: array[int] = field(compare=False, repr=False)

    def compute(self, reader: RowReader, rows: range, into: Tensor) -> None:
        width = into.shape[1]
        start = rows.start
        while start < rows.stop:
            end = self._run(start, rows.stop)
            part = into[start - rows.start : end - rows.start]
            if self.owners[start] == _NOBODY:
                part.zero_()
            else:
                origin = self.origins[self.owners[start]]
                reader.read(origin, self.places[start] * width, part.view(-1))
            start = end

    def _run(self, start: int, stop: int) -> int:
        """Return the end of the rows from `start` on that one reading fills."""
        owner, place = self.owners[start], self.places[start]
        end = start + 1
        while (
            end < stop
            and self.owners[end] == owner
            and (owner == _NOBODY or self.places[end] == place + end - start)
        ):
            end += 1
        return end


def owned_rows(
    embeddings: Sequence[TensorSpec], plan: TokenPlan, models: Sequence[str]
) -> TensorSpec:
    """Return the composed model's embeddings: the first model's as they are, unless it lacks a token."""
    first = embeddings[0]
    maps = [plan.maps[name] for name in models if name in plan.maps]
    if plan.rows is None or not maps or list(maps[0]) == list(range(first.shape[0])):
        return first
    owners = array("b", [_NOBODY]) * plan.rows
    places = array("q", [0]) * plan.rows
    for row in range(plan.rows):
        for owner, index in enumerate(maps):
            if index[row] >= 0:
                owners[row], places[row] = owner, index[row]
                break
    return OwnedRows(
        first.name,
        (plan.rows, *first.shape[1:]),
        first.dtype,
        first.file,
        first.offset,
        origins=tuple(embeddings),
        owners=owners,
        places=places,
    )

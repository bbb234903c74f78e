"""Embedding rows by token: moved to the result's ids, or merged from the models that have them."""

from __future__ import annotations

import dataclasses
import itertools
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from emberge.merging.tokens.token_plan import NO_ROW, TokenPlan
from emberge.tensor_files import DerivedTensor, TensorSpec
from emberge.tensor_names import TensorNames, is_vocabulary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from emberge.tensor_files import RowReader, TensorSource


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRows(DerivedTensor):
    """A vocabulary tensor with its rows in the order of the result's tokenizer.

    `index` contains the row of `origin` for each row, or -1 if this model lacks the token; such a row is
    zero.
    """

    origin: TensorSpec
    index: array[int] = field(compare=False, repr=False)

    def compute(self, reader: RowReader, rows: range, into: Tensor) -> None:
        if len(self.shape) == 1:
            # One row of one number a token.
            _gather_rows(
                reader,
                self.origin,
                _slice_index(self.index, range(len(self.index))),
                into.view(-1, 1),
            )
        else:
            _gather_rows(reader, self.origin, _slice_index(self.index, rows), into)

    def mark_known(self, rows: range) -> NDArray[np.bool_]:
        """Return a mask of these rows: True if the model has the row's token."""
        mask: NDArray[np.bool_] = _slice_index(self.index, rows) != NO_ROW
        return mask


def _slice_index(index: array[int], rows: range) -> NDArray[np.int64]:
    import numpy as np

    return np.frombuffer(index, np.int64)[rows.start : rows.stop]


def _gather_rows(
    reader: RowReader, origin: TensorSpec, row_numbers: NDArray[np.int64], into: Tensor
) -> None:
    """Fill `into` with these rows of `origin`, reading consecutive rows together; row -1 is zero."""
    import numpy as np

    width = into.shape[1]
    is_missing = row_numbers == NO_ROW
    # A run continues with the next row, or with one more row that the model lacks.
    is_run_end = (np.diff(row_numbers) != 1) | is_missing[:-1]
    is_run_start = is_run_end & ~(is_missing[:-1] & is_missing[1:])
    starts = [0, *(np.flatnonzero(is_run_start) + 1).tolist()] if len(row_numbers) else []
    for start, end in itertools.pairwise([*starts, len(row_numbers)]):
        run = into[start:end]
        if row_numbers[start] == NO_ROW:
            run.zero_()
        else:
            reader.read(origin, int(row_numbers[start]) * width, run.view(-1))


def move_token_rows(
    names_by_model: Mapping[str, TensorNames], template_names: TensorNames, token_plan: TokenPlan
) -> tuple[dict[str, TensorNames], TensorNames]:
    """Return the models' tensors and the template's, with the rows of the vocabulary moved as planned."""
    maps, template_map = token_plan.row_maps, token_plan.template_map
    moved = {
        model: move_rows(names, maps[model]) if model in maps else names
        for model, names in names_by_model.items()
    }
    if template_map is not None:
        template_names = move_rows(template_names, template_map)
    return moved, template_names


def align_entry(entry: TensorSpec, spec: TensorSpec, result: TensorSpec) -> TensorSpec:
    """Return a statistics entry of a model's tensor with its rows moved like those of the tensor."""
    origin = spec.origin if isinstance(spec, TokenRows) else spec
    if not entry.shape or entry.shape[0] != origin.shape[0]:
        return entry
    if isinstance(spec, TokenRows):
        return _move_rows(entry, spec.index)
    if origin.shape[0] == result.shape[0]:
        return entry
    rows, count = result.shape[0], min(result.shape[0], origin.shape[0])
    return _move_rows(entry, array("q", [*range(count), *[NO_ROW] * (rows - count)]))


def move_rows(names: TensorNames, index: array[int]) -> TensorNames:
    """Return a model's tensors, those of the vocabulary with the rows `index` of their own in this order.

    A row -1 is zero. A model without an input embedding stays as it is.
    """
    embedding = names.find_embedding()
    if embedding is None:
        return names
    specs = {
        name: _move_rows(spec, index)
        if is_vocabulary(name) and spec.mergeable and spec.shape[:1] == embedding.shape[:1]
        else spec
        for name, spec in names.specs.items()
    }
    return dataclasses.replace(names, specs=specs)


def _move_rows(spec: TensorSpec, index: array[int]) -> TokenRows:
    shape = (len(index), *spec.shape[1:])
    return TokenRows(spec.name, shape, spec.dtype, spec.file, spec.offset, origin=spec, index=index)


@dataclass(frozen=True, eq=False)
class PartialRows:
    """Rows of tokens that some models lack; each becomes the weighted mean of the models that have it.

    `is_partial` marks these rows, `specs` are the models' tensors, and `base` is that of the base.
    """

    is_partial: NDArray[np.bool_]
    specs: Sequence[TensorSpec]
    base: TensorSpec | None
    weights: Sequence[float]

    def fill(
        self,
        rows: range,
        merged: Tensor,
        sources: Sequence[TensorSource],
        base: TensorSource | None,
    ) -> None:
        """Overwrite the partial tokens' rows in `merged`, which has the tensor's `rows`."""
        import numpy as np
        import torch

        token_rows = range(len(self.is_partial)) if merged.dim() == 1 else rows
        selected = np.flatnonzero(self.is_partial[token_rows.start : token_rows.stop])
        if not len(selected):
            return
        flat = merged.view(len(token_rows), -1)
        dtype = torch.float64 if flat.dtype == torch.float64 else torch.float32
        mean = torch.zeros(len(selected), flat.shape[1], dtype=dtype)
        total = torch.zeros(len(selected), 1, dtype=dtype)
        model_weights = [float(w) for w in self.weights]
        model_weights = model_weights if any(model_weights) else [1.0] * len(model_weights)
        for spec, source, weight in zip(self.specs, sources, model_weights, strict=True):
            has_token = torch.from_numpy(_mark_known_tokens(spec, token_rows)[selected])[:, None]
            source_rows = _read_rows(source, token_rows, selected, torch.empty_like(mean))
            total += has_token * weight
            # Steps from the first owner: the row of a token with one owner is that one's to the bit.
            share = torch.where(total != 0, has_token * weight / total, 0.0)
            mean += share * (source_rows - mean)
        if base is not None and self.base is not None:
            has_only_base = (total == 0) & torch.from_numpy(
                _mark_known_tokens(self.base, token_rows)[selected]
            )[:, None]
            if bool(has_only_base.any()):
                source_rows = _read_rows(base, token_rows, selected, torch.empty_like(mean))
                mean = torch.where(has_only_base, source_rows, mean)
        flat[torch.from_numpy(selected)] = mean.to(flat.dtype)


def find_partial_rows(
    specs: Sequence[TensorSpec], base: TensorSpec | None, weights: Sequence[float]
) -> PartialRows | None:
    """Return the rows that some of a tensor's models lack; None if there are none."""
    import numpy as np

    everyone = [*specs, *([base] if base is not None else [])]
    moved_specs = [spec for spec in everyone if isinstance(spec, TokenRows)]
    if not moved_specs:
        return None
    tokens = range(moved_specs[0].shape[0])
    partial = np.zeros(len(tokens), bool)
    for spec in moved_specs:
        partial |= ~spec.mark_known(tokens)
    return PartialRows(partial, specs, base, weights) if partial.any() else None


def _mark_known_tokens(spec: TensorSpec, tokens: range) -> NDArray[np.bool_]:
    import numpy as np

    return spec.mark_known(tokens) if isinstance(spec, TokenRows) else np.ones(len(tokens), bool)


def _read_rows(
    source: TensorSource, tokens: range, wanted: NDArray[np.int64], into: Tensor
) -> Tensor:
    """Fill `into` with the selected tokens' rows, reading consecutive rows together."""
    import numpy as np

    starts = [0, *(np.flatnonzero(np.diff(wanted) != 1) + 1).tolist(), len(wanted)]
    for start, end in itertools.pairwise(starts):
        first = (tokens.start + int(wanted[start])) * into.shape[1]
        source.read(first, into[start:end].view(-1))
    return into

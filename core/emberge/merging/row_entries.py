"""Entries of statistics files for the rows of a block, read when a stage asks for them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from emberge.contracts import walk_stages
from emberge.merging.merge_plan import TensorPlan
from emberge.merging.request import MergeRequest
from emberge.merging.statistics_file import Statistics, find_model_entries, open_statistics
from emberge.merging.tokens.token_rows import align_entry
from emberge.tensor_files import FileSource, TensorReader, TensorSource, TensorSpec


@dataclass(frozen=True, slots=True, eq=False)
class StatisticsEntry:
    """A statistics entry, read from its source; with `by_row`, its rows correspond to the tensor's."""

    spec: TensorSpec
    source: TensorSource
    by_row: bool

    @classmethod
    def of(cls, spec: TensorSpec, source: TensorSource, shape: tuple[int, ...]) -> StatisticsEntry:
        """Build the entry of a tensor of this shape; it is read by row if it has as many rows."""
        by_row = len(shape) > 1 and bool(spec.shape) and spec.shape[0] == shape[0]
        return cls(spec, source, by_row)

    def read(self, rows: range) -> Tensor:
        """Read the entry for these rows, in the dtype of its file."""
        shape, start = self.spec.shape, 0
        if self.by_row:
            start = rows.start * math.prod(shape[1:])
            shape = (len(rows), *shape[1:])
        tensor = torch.empty(shape, dtype=getattr(torch, self.spec.dtype))
        if tensor.numel():
            self.source.read(start, tensor.view(-1))
        return tensor


@dataclass(frozen=True, slots=True, eq=False)
class RowStatistics(Mapping[str, Any]):
    """A block's `statistics`: numbers by label, and models' entries cut to the block's rows."""

    numbers: Mapping[str, Any] = field(default_factory=dict)
    entries: Mapping[str, StatisticsEntry] = field(default_factory=dict)
    rows: range = range(0)
    device: str = "cpu"

    def of(self, rows: range, device: str) -> RowStatistics:
        """Return the statistics for other rows of the tensor."""
        return dataclasses.replace(self, rows=rows, device=device)

    def count_row_bytes(self, rows: int) -> int:
        """Return the bytes that the entries take per row, as read and as converted for computing."""
        sizes = [e.spec.nbytes for e in self.entries.values()]
        return 3 * sum(sizes) // max(1, rows)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the whole entries, by label."""
        shape_by_label = {
            label: tuple(getattr(v, "shape", ())) for label, v in self.numbers.items()
        }
        return {
            **shape_by_label,
            **{label: entry.spec.shape for label, entry in self.entries.items()},
        }

    def __getitem__(self, label: str) -> Any:
        if label in self.entries:
            return self.entries[label].read(self.rows).to(self.device)
        return self.numbers[label]

    def __iter__(self) -> Iterator[str]:
        return iter({**self.numbers, **self.entries})

    def __len__(self) -> int:
        return len({*self.numbers, *self.entries})

    def __contains__(self, label: object) -> bool:
        return label in self.entries or label in self.numbers


class MergeStatistics:
    """The statistics of a merge, by chain: small numbers by label, and each model's own entries.

    Raises:
        CheckpointError: if a file is missing, or was measured on other models.
    """

    def __init__(self, request: MergeRequest) -> None:
        self._models = [model.name for model in request.inputs]
        self._numbers: list[list[Statistics]] = []
        self._entries: list[dict[str, Mapping[str, TensorSpec]]] = []
        for chain in request.chains:
            of_models = [one for one in walk_stages(chain) if one.statistics_of == "models"]
            of_labels = [one for one in walk_stages(chain) if one.statistics_of == "labels"]
            files = open_statistics(of_labels, request.statistics)
            self._numbers.append([file.read() for file in files])
            self._entries.append({})
            for stage in of_models:
                self._entries[-1].update(find_model_entries(stage, request))

    def of(self, chain: int, tensor: TensorPlan, layer: str, reader: TensorReader) -> RowStatistics:
        """Return the statistics that the blocks of a tensor get in the chain numbered `chain`."""
        numbers: dict[str, Any] = {}
        for statistics in self._numbers[chain]:
            numbers.update(statistics.of(layer, tensor.name))
        entries = {}
        for model, own in zip(self._models, tensor.sources, strict=True):
            spec = self._entries[chain].get(model, {}).get(tensor.name)
            if spec is not None and own is not None:
                spec = align_entry(spec, own, tensor.out)
                source = FileSource(model, spec, reader)
                entries[model] = StatisticsEntry.of(spec, source, tensor.out.shape)
        return RowStatistics(numbers, entries)

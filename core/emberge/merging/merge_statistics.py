"""Statistics of a merge: the entries of files that its stages name, read when a stage asks for them.

An entry belongs to a model if the file has the fingerprint of the model's content. Loads no torch on import.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge.contracts import Stage, list_statistics_files, walk_stages
from emberge.errors import CheckpointError, EmbergeError, Problem
from emberge.merging.merge_plan import TensorPlan
from emberge.merging.request import MergeInput, MergeRequest
from emberge.merging.statistics_file import Statistics, StatisticsFile
from emberge.merging.tokens.token_rows import align_entry
from emberge.tensor_files import FileSource, TensorReader, TensorSource, TensorSpec

if TYPE_CHECKING:
    from torch import Tensor


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
        import torch

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

    def of(
        self, chain_number: int, tensor: TensorPlan, layer: str, reader: TensorReader
    ) -> RowStatistics:
        """Return the statistics of a tensor's blocks; `chain_number` counts the request's chains from 0."""
        numbers: dict[str, Any] = {}
        for statistics in self._numbers[chain_number]:
            numbers.update(statistics.of(layer, tensor.name))
        entries = {}
        for model, source_spec in zip(self._models, tensor.sources, strict=True):
            spec = self._entries[chain_number].get(model, {}).get(tensor.name)
            if spec is not None and source_spec is not None:
                spec = align_entry(spec, source_spec, tensor.result)
                source = FileSource(model, spec, reader)
                entries[model] = StatisticsEntry.of(spec, source, tensor.result.shape)
        return RowStatistics(numbers, entries)


def open_statistics(
    stages: Iterable[Stage], path_by_reference: Mapping[str, Path], *, steps: bool = True
) -> list[StatisticsFile]:
    """Open the statistics files that stages name themselves; those of steps are in `path_by_reference`.

    Without `steps`, files that an unfinished step will write are omitted.

    Raises:
        CheckpointError: if a file is missing.
    """
    references = {file.text: file for stage in stages for file in list_statistics_files(stage)}
    return [
        StatisticsFile.open(
            path_by_reference.get(text) or reference.folder / Path(reference.text).expanduser()
        )
        for text, reference in references.items()
        if steps or text in path_by_reference or not text.startswith("$")
    ]


def find_model_entries(stage: Stage, request: MergeRequest) -> dict[str, Mapping[str, TensorSpec]]:
    """Return each model's entries by tensor or layer, from the files that a stage names itself.

    Raises:
        CheckpointError: if a model has no fingerprint by which to find its entries, or is in no file.
    """
    files = open_statistics([stage], request.statistics)
    entries_by_model = {}
    for model in request.inputs:
        if not model.fingerprint:
            raise CheckpointError(
                f"'{model.name}' has no fingerprint to hold its statistics against; give the MergeInput "
                "fingerprint=hash_model(folder)"
            )
        owners = _find_owners(model, files)
        if len(owners) != 1:
            raise CheckpointError(_explain_owners(model, files, len(owners)))
        file, label = owners[0]
        entries_by_model[model.name] = file.entries.get(label, {})
    return entries_by_model


def find_statistics_problems(request: MergeRequest) -> Iterator[Problem]:
    """Yield the problems of existing statistics files, from their headers alone."""
    messages: dict[str, None] = {}
    for chain in request.chains:
        for stage in walk_stages(chain):
            try:
                files = open_statistics([stage], request.statistics, steps=False)
                messages.update(dict.fromkeys(_describe_file_problems(stage, files, request)))
            except EmbergeError as error:
                messages[str(error)] = None
    yield from map(Problem, messages)


def _describe_file_problems(
    stage: Stage, files: Sequence[StatisticsFile], request: MergeRequest
) -> Iterator[str]:
    problems = [
        problem for file in files for problem in _describe_file_problem(stage, file, request)
    ]
    yield from problems
    # Files that an unfinished step will make may have the missing models.
    are_complete = len(files) == len({file.text for file in list_statistics_files(stage)})
    if stage.statistics_of == "models" and are_complete and not problems:
        for model in request.inputs:
            count = len(_find_owners(model, files))
            if model.fingerprint and count != 1:
                yield _explain_owners(model, files, count)


def _describe_file_problem(
    stage: Stage, file: StatisticsFile, request: MergeRequest
) -> Iterator[str]:
    if stage.statistics_kind not in ("", file.measure):
        yield (
            f"{file.path}: holds {file.measure or 'another measure'}, and '{stage.name_in_messages}' needs "
            f"{stage.statistics_kind}; make it with measure: {stage.statistics_kind}"
        )
    base = request.base.fingerprint if request.base is not None else ""
    if base and file.base and file.base != base:
        yield (
            f"{file.path}: was measured from another base than this merge's (content {file.base[:12]}, not "
            f"{base[:12]}); measure it again"
        )


def _find_owners(
    model: MergeInput, files: Sequence[StatisticsFile]
) -> list[tuple[StatisticsFile, str]]:
    """Return each file, and label in it, under which exactly this model was measured."""
    return [
        (file, label)
        for file in files
        for label, content in file.models.items()
        if content == model.fingerprint
    ]


def _explain_owners(model: MergeInput, files: Sequence[StatisticsFile], count: int) -> str:
    paths = ", ".join(str(file.path) for file in files) or "no statistics file"
    if count:
        return f"{paths}: '{model.name}' was measured {count} times; name one file of each model"
    labels = [f"{label} ({content[:12]})" for f in files for label, content in f.models.items()]
    label_list = ", ".join(labels) or "nothing"
    return (
        f"{paths}: nothing was measured of '{model.name}' as it is now (content "
        f"{model.fingerprint[:12]}); there is {label_list}; measure it again"
    )

"""Jobs of a streamed checkpoint: each measures and produces rows of one tensor on request."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from emberge.contracts import Block, Measures, Pass, as_row_shape
from emberge.errors import CheckpointError
from emberge.merging.chain import Chain
from emberge.numerics import (
    KERNEL_DTYPES,
    MAGNITUDE_LIMIT,
    DecodedRows,
    DeltaProgram,
    KernelLibrary,
    RowsError,
    RowsPlace,
    StoredRows,
    are_usable,
    encode_rows,
    reuse_bytes,
    reuse_tensor,
)
from emberge.tensor_files import (
    DerivedTensor,
    FileSource,
    TensorReader,
    TensorSource,
    TensorSpec,
)

if TYPE_CHECKING:
    from torch import Tensor

    from emberge.merging.merge_statistics import RowStatistics
    from emberge.merging.tokens.token_rows import PartialRows


Sources = Sequence[TensorSource]
Shape = tuple[int, ...]
# The measures of a job's finished passes, those of all links in one list.
PassMeasures = Sequence[Measures]


@dataclass(frozen=True, slots=True)
class MeasuringPass:
    """One reading of a tensor before it is produced.

    The function `join` sums the measures of all jobs with an equal `key`. If the pass `is_exact`, its
    measures do not depend on how the tensor is split. If it `is_sparse`, it reads so little on a CPU that the
    tensor need not be split at all.
    """

    key: str
    join: Callable[[Sequence[Measures]], Measures]
    is_exact: bool = False
    is_sparse: bool = False


class TensorJob(ABC):
    """One tensor of the output. The scheduler chooses the rows, their order, the thread and the device.

    All jobs of one `unit` have the same number of passes, and all of them are measured before any is
    produced. `all_measures` has one entry per finished pass. A subclass that measures nothing defines only
    `spec` and `produce`.
    """

    spec: TensorSpec
    """Name, shape and dtype of the tensor that is produced, known before any work."""

    @property
    def all_sources(self) -> Sequence[TensorSource]:
        """All tensors that the job reads."""
        return ()

    @property
    def kernels(self) -> KernelLibrary | None:
        """The compiled kernels that the job works with, if it does."""
        return None

    @property
    def unusable(self) -> str:
        """The error message, without the tensor's name, for numbers that are not usable."""
        return "has values that are NaN, infinite or above 1.8e19; make it again"

    @property
    def needs_torch(self) -> bool:
        """False if the job works with NumPy alone and produces arrays."""
        return True

    @property
    def unit(self) -> str:
        """The name of the group of jobs that are measured together."""
        return self.spec.name

    @property
    def whole(self) -> bool:
        """True if the tensor must be produced in one piece."""
        return False

    @property
    def grid(self) -> tuple[int, int]:
        """Number of rows and elements of a row; rows are never split."""
        return as_row_shape(self.spec.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of memory that one row needs while it is worked on, for the memory limit."""
        return self.grid[1] * 8

    @property
    def passes(self) -> Sequence[MeasuringPass]:
        """The passes over the tensor before it is produced."""
        return ()

    @property
    def remarks(self) -> dict[str, Any]:
        """Remarks collected while the job runs, as JSON for the journal."""
        return {}

    def needs_rows(self, rows: range, all_measures: PassMeasures) -> bool:
        """Return whether the next pass has to read these rows."""
        return True

    def measure(self, rows: range, index: int, all_measures: PassMeasures, device: str) -> Measures:
        """Return the measures of a granule; `index` is its number among the tensor's granules."""
        return {}

    def conclude(self, all_measures: PassMeasures) -> Measures:
        """Return the measures that replace all_measures[-1] in later calls."""
        return all_measures[-1]

    @abstractmethod
    def produce(self, rows: range, all_measures: PassMeasures, device: str) -> Tensor | np.ndarray:
        """Return the rows as they will be stored: contiguous, on the CPU, valid until the next call.

        A tensor of `uint8`, or an array, counts as raw bytes, which are not checked for NaN.
        """


@dataclass(slots=True, eq=False)
class MergeJob(TensorJob):
    """A job that merges one tensor of several models by a chain of stages.

    `block` is the block without data: canonical name, layer, models, groups, weights, seed, fingerprints; its
    rows are empty, and have the dtype of the computation. `chain_id` differs between the chains of different
    rules, so that a stage measures only the tensors of its own rule. `partial_rows` are the rows of tokens
    that some models lack; the strategy does not merge them. `statistics` are the models' entries for the
    block's rows. `kernels` are compiled kernels for a CPU, which give the same bytes. `remarks` may contain
    "warnings" (texts) and "findings" (numbers by label).
    """

    spec: TensorSpec
    sources: Sequence[TensorSource]
    base: TensorSource | None
    chain: Chain
    block: Block
    chain_id: int = 0
    partial_rows: PartialRows | None = None
    statistics: RowStatistics | None = None
    kernels: KernelLibrary | None = None
    remarks: dict[str, Any] = field(default_factory=dict)
    all_sources: Sequence[TensorSource] = field(init=False)
    passes: Sequence[MeasuringPass] = field(init=False)
    unit: str = field(init=False)
    whole: bool = field(init=False)
    needs_torch: bool = field(init=False)
    _uses_kernels: bool = field(init=False)
    _stage_passes: Sequence[tuple[int, int, Pass]] = field(init=False)
    """For each pass the position of its link, its number among the link's passes, and the link's pass."""

    def __post_init__(self) -> None:
        block, links = self.block, self.chain.links
        self.all_sources = [*self.sources, *([self.base] if self.base is not None else [])]
        self.whole = any(link.needs_whole(block) for link in links)
        self._uses_kernels = self.kernels is not None and block.rows.dtype == "float32"
        self.needs_torch = not (
            self._uses_kernels
            and not any(link.needs_torch for link in links)
            and self.partial_rows is None
            and self.statistics is None
            and self.spec.dtype in KERNEL_DTYPES
            and all(map(_is_plain, self.all_sources))
        )
        self._stage_passes = [
            (position, number, one_pass)
            for position, link in enumerate(links)
            for number, one_pass in enumerate(link.passes)
        ]
        # The first link samples runs of the files; a later one would compute all deltas for its sample.
        reads_runs = not self.needs_torch and all(
            isinstance(source, FileSource) for source in self.all_sources
        )
        key_by_scope = {
            "tensor": f"{self.chain_id}:tensor:{block.name}",
            "model": f"{self.chain_id}:model:",
        }
        self.passes = [
            MeasuringPass(
                key_by_scope[one_pass.scope],
                one_pass.join,
                one_pass.is_exact,
                is_sparse=reads_runs and position == 0 and one_pass.is_sample,
            )
            for position, _, one_pass in self._stage_passes
        ]
        scopes = {one_pass.scope for _, _, one_pass in self._stage_passes}
        self.unit = key_by_scope["model" if "model" in scopes else "tensor"]

    @property
    def row_bytes(self) -> int:
        models, has_base = len(self.sources), self.base is not None
        if not self.needs_torch:
            # Kernels read in windows: the result, and at most one decoded number for each model.
            numbers = models + 1
        elif has_base and (self.whole or self.chain.sees_base):
            # The stacked models, the deltas, and a stage's copies of both.
            numbers = 3 * models + 6
        else:
            numbers = 2 * models + 4
        rows, width = as_row_shape(self.spec.shape)
        entries = self.statistics.count_row_bytes(rows) if self.statistics is not None else 0
        return width * numbers * np.dtype(self.block.rows.dtype).itemsize + entries

    def needs_rows(self, rows: range, all_measures: PassMeasures) -> bool:
        position, _, one_pass = self._stage_passes[len(all_measures)]
        if one_pass.reads == "nothing":
            return rows.start == 0
        return one_pass.is_needed(self._split_by_link(all_measures)[position])

    def measure(self, rows: range, index: int, all_measures: PassMeasures, device: str) -> Measures:
        position, number, one_pass = self._stage_passes[len(all_measures)]
        measures_by_link, block = self._split_by_link(all_measures), self.block
        if one_pass.reads != "nothing":
            base = self.base if self.chain.reads_base(position, number) else None
            # A sample is not checked: the pass that reads all rows checks them.
            checks_values = not (
                one_pass.is_sample or self._are_checked(all_measures, base is not None)
            )
            block = self._read_block(rows, index, device, base, checks_values=checks_values)
        with self._name_in_errors():
            measures = self.chain.measure(measures_by_link, block, position)
            block.rows.check_rest()
            return measures

    def conclude(self, all_measures: PassMeasures) -> Measures:
        position = self._stage_passes[len(all_measures) - 1][0]
        with self._name_in_errors():
            concluded = self.chain.conclude(self._split_by_link(all_measures), self.block, position)
        if concluded.get("warning"):
            self.remarks.setdefault("warnings", []).append(concluded["warning"])
        if concluded.get("findings"):
            findings = {label: float(number) for label, number in concluded["findings"].items()}
            self.remarks.setdefault("findings", {}).update(findings)
        return concluded

    def produce(self, rows: range, all_measures: PassMeasures, device: str) -> Tensor | np.ndarray:
        base = self.base if any(link.reads_base for link in self.chain.links) else None
        checks_values = not self._are_checked(all_measures, base is not None)
        block = self._read_block(rows, 0, device, base, checks_values=checks_values)
        with self._name_in_errors():
            merged = self.chain.merge(self._split_by_link(all_measures), block, self.spec.dtype)
            block.rows.check_rest()
            if not isinstance(merged, np.ndarray):
                self._require_merged(merged, self._compute_shape(rows))
        encoded = encode_rows(merged, self.spec.dtype)
        if isinstance(encoded, np.ndarray):
            assert self.kernels is not None
            stored = encoded.reshape(-1).view(np.uint8)
            if not are_usable(stored, self.spec.dtype, self.kernels):
                raise CheckpointError(f"{self.spec.name}: {self.unusable}")
            return stored
        if self.partial_rows is not None:
            self.partial_rows.fill(rows, encoded, self.sources, self.base)
        return encoded

    def _compute_shape(self, rows: range) -> Shape:
        """Return the shape of one model's rows; a 0-D or 1-D tensor is one row."""
        shape = self.spec.shape
        return (len(rows), *shape[1:]) if len(shape) > 1 else shape

    def _require_merged(self, merged: Any, shape: Shape) -> None:
        """Require that what a strategy returned is a tensor with the shape of a model's rows."""
        name = f"{type(self.chain.links[-1]).__name__} must return"
        if not getattr(merged, "is_floating_point", bool)():
            raise ValueError(f"{name} a tensor of floats, not {getattr(merged, 'dtype', merged)}")
        if tuple(merged.shape) != tuple(shape):
            raise ValueError(f"{name} the shape {list(shape)}, not {list(merged.shape)}")

    @property
    def unusable(self) -> str:
        return (
            f"merging gives NaN, or values that {self.spec.dtype} cannot hold or above 1.8e19; choose "
            "another out_dtype or smaller weights, or mend the strategy"
        )

    @contextmanager
    def _name_in_errors(self) -> Iterator[None]:
        """Turn a ValueError of a stage, and rows that cannot be used, into an error that names the tensor."""
        try:
            yield
        except RowsError as error:
            raise self._explain(error) from error
        except ValueError as error:
            prefix = "" if str(error).startswith(self.block.name) else f"{self.spec.name}: "
            raise CheckpointError(f"{prefix}{error}") from error

    def _are_checked(self, all_measures: PassMeasures, with_base: bool) -> bool:
        """Return whether a finished pass has read, and so checked, all rows, and the base's `with_base`."""
        measures_by_link = self._split_by_link(all_measures)
        return any(
            one_pass.reads != "nothing"
            and not one_pass.is_sample
            and one_pass.is_needed(measures_by_link[position][:number])
            and (self.chain.reads_base(position, number) or not with_base)
            for position, number, one_pass in self._stage_passes[: len(all_measures)]
        )

    def _split_by_link(self, all_measures: PassMeasures) -> list[list[Measures]]:
        """Return the measures of each link's finished passes."""
        measures_by_link: list[list[Measures]] = [[] for _ in self.chain.links]
        for measures, (position, _, _) in zip(all_measures, self._stage_passes, strict=False):
            measures_by_link[position].append(measures)
        return measures_by_link

    def _read_block(
        self,
        rows: range,
        index: int,
        device: str,
        base: TensorSource | None,
        *,
        checks_values: bool,
    ) -> Block:
        """Return a block of some rows, read from the models and from `base`, unless that is None."""
        start, shape = rows.start * as_row_shape(self.spec.shape)[1], self._compute_shape(rows)
        sources = [*self.sources, *([base] if base is not None else [])]
        read_rows: StoredRows | DecodedRows
        if device == "cpu" and self._uses_kernels:
            read_rows = self._read_stored(sources, start, shape, checks_values=checks_values)
        else:  # everything is decoded in the end, and at once is fastest
            read_rows = self._read_decoded(
                sources, start, shape, device, checks_values=checks_values
            )
        statistics = self.block.statistics
        return self.block.replace(
            rows=DeltaProgram(read_rows, start),
            index=index,
            statistics=statistics if self.statistics is None else self.statistics.of(rows, device),
        )

    def _read_decoded(
        self, sources: Sources, start: int, shape: Shape, device: str, *, checks_values: bool
    ) -> DecodedRows:
        """Return rows of this shape from element `start` on, as tensors; a last source may be the base's."""
        import torch

        gpu, count, size = device != "cpu", len(self.sources), math.prod(shape)
        dtype = getattr(torch, self.block.rows.dtype)
        flat = reuse_tensor("pinned" if gpu else "block", len(sources) * size, dtype, pinned=gpu)
        stacked = flat.view(len(sources), size)
        for source, into in zip(sources, stacked, strict=True):
            source.read(start, into)
            if checks_values and not is_usable(into):
                raise self._build_damage_error(source)
        tensors = stacked.view(len(sources), *shape).to(device, non_blocking=gpu)
        return DecodedRows(tensors[:count], tensors[count] if len(sources) > count else None)

    def _read_stored(
        self, sources: Sources, start: int, shape: Shape, *, checks_values: bool
    ) -> StoredRows:
        """Return rows as `_read_decoded`, in their stored dtypes and, if they are in files, still unread."""
        assert self.kernels is not None
        count, size = len(self.sources), math.prod(shape)
        places, end = [], 0
        for number, source in enumerate(sources):
            is_plain = _is_plain(source)
            place = RowsPlace(source.spec.dtype if is_plain else "float32", end, number)
            first_byte, length = start * place.itemsize, size * place.itemsize
            if is_plain and (in_file := source.locate(first_byte, length)):
                place = place._replace(handle=in_file[0], position=in_file[1])
            places.append(place)
            end += place.count_memory_bytes(size)
        memory = reuse_bytes("stored", end)
        for source, place in zip(sources, places, strict=True):
            if place.handle < 0:
                into = memory[place.start : place.start + size * place.itemsize]
                _read_numbers(source, start, into, place)
        with self._name_in_errors():
            return StoredRows.of(
                memory,
                places[:count],
                places[count] if len(sources) > count else None,
                shape,
                self.kernels,
                is_checked=checks_values,
                without_torch=not self.needs_torch,
            )

    def _explain(self, error: RowsError) -> CheckpointError:
        """Return an error that names the tensor, and the model whose rows cannot be used."""
        source = self.all_sources[error.number]
        if not error.is_unreadable:
            return self._build_damage_error(source)
        spec = source.spec
        is_short = spec.file.exists() and spec.file.stat().st_size < spec.offset + spec.nbytes
        reason = "ends inside" if is_short else "cannot be read within"
        return CheckpointError(f"{spec.file}: {reason} tensor '{spec.name}'; get the file again")

    def _build_damage_error(self, source: TensorSource) -> CheckpointError:
        return CheckpointError(
            f"{self.spec.name}: '{source.model}' has values that are NaN, infinite or above 1.8e19; "
            f"leave that model out or make it again"
        )


@dataclass(frozen=True, slots=True)
class CopyJob(TensorJob):
    """A job that moves one tensor's bytes undecoded; `equal_sources` lists sources whose bytes must be equal.

    The source has the shape and dtype of `spec`; its name may differ, so several jobs may copy one tensor to
    several names. If the tensor is computed and not read from a file, its numbers must be usable.

    Raises:
        CheckpointError: if a source has another shape or dtype.
    """

    spec: TensorSpec
    source: TensorSource
    equal_sources: Sequence[TensorSource] = ()

    def __post_init__(self) -> None:
        spec = self.spec
        for source in self.all_sources:
            if (source.spec.shape, source.spec.dtype) != (spec.shape, spec.dtype):
                raise CheckpointError(
                    f"{spec.name}: has shape {list(spec.shape)} in {spec.dtype}, and what is copied from "
                    f"'{source.model}' has {list(source.spec.shape)} in {source.spec.dtype}; a copy changes "
                    "neither"
                )

    @property
    def all_sources(self) -> Sequence[TensorSource]:
        return (self.source, *self.equal_sources)

    @property
    def unusable(self) -> str:
        return f"'{self.source.model}' has values that are NaN, infinite or above 1.8e19; make it again"

    @property
    def grid(self) -> tuple[int, int]:
        spec = self.source.spec
        if not isinstance(spec, DerivedTensor):
            return as_row_shape(self.spec.shape)
        return spec.elements // max(1, spec.row_width), spec.row_width

    @property
    def row_bytes(self) -> int:
        # What is computed passes through float64, and through a piece or two of what it is computed from.
        return self.grid[1] * (32 if self.needs_torch else 8)

    @property
    def needs_torch(self) -> bool:
        source = self.source
        return not isinstance(source, FileSource) or isinstance(source.spec, DerivedTensor)

    def produce(self, rows: range, all_measures: PassMeasures, device: str) -> Tensor | np.ndarray:
        width = self.grid[1] * self.spec.itemsize
        piece = self._read_piece("copy", self.source, rows.start * width, len(rows) * width)
        for other in self.equal_sources:
            same = self._read_piece("same", other, rows.start * width, len(piece))
            if not np.array_equal(piece, same):
                raise CheckpointError(
                    f"{self.spec.name}: {self.spec.dtype} values cannot be merged, and those of "
                    f"'{other.model}' differ from those of '{self.source.model}'"
                )
        if not (self.needs_torch and self.spec.mergeable):
            return piece
        import torch

        return torch.from_numpy(piece).view(getattr(torch, self.spec.dtype))

    @staticmethod
    def _read_piece(use: str, source: TensorSource, start: int, size: int) -> np.ndarray:
        piece = reuse_bytes(use, size)
        source.read_bytes(start, piece.data)
        return piece


def announce_reads(jobs: Sequence[TensorJob]) -> Callable[[], None]:
    """Announce to the fetcher which tensors on servers the jobs will read, in the jobs' order.

    Returns a function that ends all requests, for use when the work fails.
    """
    specs_by_reader: dict[TensorReader, list[list[TensorSpec]]] = {}
    for job in jobs:
        job_specs: dict[TensorReader, list[TensorSpec]] = {}
        for source in job.all_sources:
            if isinstance(source, FileSource):
                job_specs.setdefault(source.reader, []).append(source.spec)
        for reader, specs in job_specs.items():
            specs_by_reader.setdefault(reader, []).append(specs)
    for reader, all_specs in specs_by_reader.items():
        reader.expect(all_specs)

    def end_requests() -> None:
        for reader in specs_by_reader:
            reader.end_requests()

    return end_requests


def _is_plain(source: TensorSource) -> bool:
    """Return whether the source's elements can be read as stored bytes."""
    return not isinstance(source.spec, DerivedTensor) and source.spec.dtype in KERNEL_DTYPES


def _read_numbers(source: TensorSource, start: int, into: np.ndarray, place: RowsPlace) -> None:
    """Fill the bytes `into` with a source's elements from `start` on, in the dtype of its place."""
    if _is_plain(source):
        source.read_bytes(start * place.itemsize, into.data)
        return
    import torch

    source.read(start, torch.from_numpy(into).view(getattr(torch, place.dtype)))


def convert_piece(piece: Tensor | np.ndarray, spec: TensorSpec) -> Tensor:
    """Return the numbers of a produced piece, flat; raw bytes get the tensor's dtype."""
    import torch

    flat = torch.as_tensor(piece).reshape(-1)
    return flat.view(getattr(torch, spec.dtype)) if flat.dtype == torch.uint8 else flat


def is_usable(tensor: Tensor, *, kernels: KernelLibrary | None = None) -> bool:
    """Return whether a tensor has neither NaN nor values from MAGNITUDE_LIMIT on, which overflow."""
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    if kernels is not None and dtype in KERNEL_DTYPES:
        stored: np.ndarray = tensor.reshape(-1).view(torch.uint8).numpy()
        return are_usable(stored, dtype, kernels)
    if not tensor.numel():
        return True
    wide_tensor = tensor.float() if tensor.dtype.itemsize == 1 else tensor
    least, most = map(float, torch.aminmax(wide_tensor))  # either is NaN if any value is
    return least > -MAGNITUDE_LIMIT and most < MAGNITUDE_LIMIT

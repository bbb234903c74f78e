"""Comparison of two model folders' weights: tensors matched by name, read once, in bounded memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from emberge.contracts import Machine, Measures, Model, rows_of
from emberge.errors import CheckpointError
from emberge.merging.comparison import PairSums, WeightComparison
from emberge.merging.streaming.jobs import MeasuringPass, TensorJob
from emberge.merging.streaming.scheduler import SchedulerLimits, run_jobs
from emberge.model_folder import Checkpoint, ModelPair
from emberge.tensor_files import FileSource, TensorReader, TensorSource, TensorSpec, scratch
from emberge.tensor_names import Part, is_buffer, is_vocabulary, layer_of, part_of
from emberge.wording import count_by_first_word, count_noun, join_some

# Elements summed in float32, before sums are added in float64: squares of 2^18 were wrong by up to 2e-6.
_FLOAT32_SUM_ELEMENTS = 1 << 16


def compare_weights(
    first: Model, second: Model, base: Model | None = None, *, machine: Machine | None = None
) -> WeightComparison:
    """Compare the floating-point weights of two models, and their changes from a `base` if one is given.

    Tensors are matched by their names without a wrapper's prefix, and rows of vocabularies by token.
    Numbers do not depend on the number of threads.

    Raises:
        CheckpointError: if a folder has no safetensors, the models have no tensor in common, or a tensor has
            NaN or infinite values.
    """
    matched = _match_tensors([first, second, *([base] if base is not None else [])])
    if not matched.pairs:
        raise CheckpointError(
            f"'{second.name}' and '{first.name}' have no tensor in common"
            + "".join(f"; {note}" for note in matched.notes)
        )
    jobs = _measure_pairs(matched, machine or Machine())
    weights: dict[tuple[str, Part], PairSums] = {}
    changes: dict[tuple[str, Part], PairSums] = {}
    for job in jobs:
        key = layer_of(job.spec.name), part_of(job.spec.name, job.spec.shape)
        for into, what in ((weights, "weights"), (changes, "changes")):
            if what in job.outcome:
                into[key] = into.get(key, PairSums()) + job.outcome[what]
    return WeightComparison(
        first=first.name,
        second=second.name,
        base=base.name if base is not None else None,
        weights=weights,
        changes=changes,
        left_out=tuple(matched.left_out),
        notes=tuple(matched.notes),
    )


@dataclass
class _MatchedPairs:
    """Tensors of the models by canonical name, with names of omitted tensors and the reasons.

    `models` are names of models; a tensor that the base lacks has two specs. `shared` marks the rows of
    vocabularies whose token is the same in all models; if it is empty, all rows are compared.
    """

    models: Sequence[str]
    pairs: dict[str, tuple[TensorSpec, ...]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    shared: list[bool] = field(default_factory=list)


def _measure_pairs(found: _MatchedPairs, machine: Machine) -> list[CompareJob]:
    """Measure all pairs on the machine's threads, and return their jobs."""
    shared = torch.tensor(found.shared) if found.shared else None
    with TensorReader() as reader:
        jobs = []
        for name, specs in found.pairs.items():
            sources = [
                FileSource(model, spec, reader)
                for model, spec in zip(found.models, specs, strict=False)
            ]
            rows = min(spec.shape[0] for spec in specs) if specs[0].shape else 0
            shape = (rows, *specs[0].shape[1:]) if specs[0].shape else ()
            shared_rows = shared[:rows] if shared is not None and is_vocabulary(name) else None
            jobs.append(CompareJob(TensorSpec(name, shape, "float32"), sources, shared_rows))
        units = {job.unit: [job] for job in jobs}
        run_jobs([], lambda *_: None, limits=SchedulerLimits.of(machine), units=units)
    return jobs


# ── matching ────────────────────────────────────────────────────────────────────────────────────


def _match_tensors(models: Sequence[Model]) -> _MatchedPairs:
    checkpoints = [_open(model) for model in models]
    names = [checkpoint.names for checkpoint in checkpoints]
    matched = _MatchedPairs([model.name for model in models])
    names_by_side: dict[int, list[str]] = {0: [], 1: [], 2: []}
    unmatched_names: list[str] = []
    for name in dict.fromkeys(name for own in names[:2] for name in own.specs):
        specs = [own.specs.get(name) for own in names]
        if is_buffer(name) or not all(spec.mergeable for spec in specs if spec is not None):
            continue
        a, b, *base = specs
        if a is None or b is None:
            lacking = names[0 if a is None else 1]
            if not lacking.is_tied_copy(name):
                names_by_side[1 if a is None else 0].append(name)
        elif not _have_same_shape(name, a, b):
            unmatched_names.append(f"{name} {list(a.shape)} and {list(b.shape)}")
            matched.left_out.append(name)
        elif base and (base[0] is None or not _have_same_shape(name, a, base[0])):
            names_by_side[2].append(name)
            matched.pairs[name] = (a, b)
        else:
            matched.pairs[name] = (
                a,
                b,
                *(spec for spec in base if spec is not None),
            )
    matched.left_out += [*names_by_side[0], *names_by_side[1]]
    matched.notes += _describe_lacking(matched.models, names_by_side)
    if unmatched_names:
        matched.notes.append(
            f"{_count_phrase(len(unmatched_names))} other shapes: {join_some(unmatched_names, 3)}"
        )
    _match_rows(matched, checkpoints)
    return matched


def _open(model: Model) -> Checkpoint:
    if model.adapter is None:
        return Checkpoint(model.folder)
    from emberge.merging.adapter_reader import open_model

    return open_model(model.folder, model.adapter)


def _have_same_shape(name: str, first: TensorSpec, second: TensorSpec) -> bool:
    """Return whether shapes are equal, or differ only in the number of rows of a vocabulary."""
    rows = is_vocabulary(name) and bool(first.shape) and bool(second.shape)
    return first.shape[rows:] == second.shape[rows:]


def _describe_lacking(models: Sequence[str], only: Mapping[int, Sequence[str]]) -> Iterator[str]:
    for index, names in only.items():
        if names and index == 2:
            yield f"the base lacks it, or has it in another shape: {count_by_first_word(names)}"
        elif names:
            yield f"only in '{models[index]}': {count_by_first_word(names)}"


def _count_phrase(count: int) -> str:
    return f"{count_noun(count, 'tensor')} {'has' if count == 1 else 'have'}"


def _match_rows(found: _MatchedPairs, checkpoints: Sequence[Checkpoint]) -> None:
    """Mark the rows of vocabularies whose token is the same in all models, and note the other rows."""
    counts = {
        spec.shape[0]
        for name, specs in found.pairs.items()
        if is_vocabulary(name)
        for spec in specs
    }
    if not counts:
        return
    common_rows = min(counts)
    if len(counts) > 1:
        sizes = " and ".join(map(str, sorted(counts)))
        found.notes.append(f"vocabularies have {sizes} rows; the first {common_rows} are compared")
    if all(ModelPair(checkpoints[0], other).same_tokenizer for other in checkpoints[1:]):
        return
    from emberge.merging.tokens.tokenizer import Tokenizer

    tokenizers = [Tokenizer.read(one) for one in checkpoints]
    vocabularies = [one.texts for one in tokenizers if one is not None]
    found.shared = [len({texts.get(i) for texts in vocabularies}) <= 1 for i in range(common_rows)]
    different_count = found.shared.count(False)
    if len(vocabularies) < len(tokenizers):
        found.notes.append("not every model has a tokenizer, so rows are compared by number")
    if different_count:
        found.notes.append(
            f"{count_noun(different_count, 'row')} of {common_rows} of the vocabularies are for other tokens "
            "and are left out"
        )
    else:
        found.shared = []


@dataclass(frozen=True, slots=True, eq=False)
class CompareJob(TensorJob):
    """A job that compares one tensor of two models, and of a base if there is a third source.

    `spec` has the compared rows; `shared` marks the rows whose token is the same in all models, None marks
    all. After the measurement, `weights` and, with a base, `changes` contain the sums.
    """

    spec: TensorSpec
    sources: Sequence[TensorSource]
    shared: Tensor | None = None
    outcome: dict[str, PairSums] = field(default_factory=dict)

    @property
    def passes(self) -> Sequence[MeasuringPass]:
        return (MeasuringPass(self.spec.name, _join_sums),)

    def measure(self, rows: range, index: int, stats: Sequence[Measures], device: str) -> Measures:
        width = rows_of(self.spec.shape)[1]
        size = len(rows) * width
        gpu = device != "cpu"
        flat = scratch("compared", (len(self.sources) + 1) * size, torch.float32, pinned=gpu)
        stacked = flat.view(len(self.sources) + 1, size)
        for source, into in zip(self.sources, stacked, strict=False):
            source.read(rows.start * width, into)
        elements = self._clear_other_rows(rows, stacked, width)
        first, second, *base_and_spare = stacked.to(device, non_blocking=gpu)
        spare = base_and_spare[-1]
        sums = {"weights": _pair_sums(first, second, spare, elements)}
        if len(base_and_spare) > 1:
            first.sub_(base_and_spare[0])
            second.sub_(base_and_spare[0])
            sums["changes"] = _pair_sums(first, second, spare, elements)
        return sums

    def conclude(self, stats: Sequence[Measures]) -> Measures:
        for what, numbers in stats[-1].items():
            sums = PairSums(*numbers.tolist())
            if sums.change - sums.change != 0:  # NaN and infinity are no sums
                raise CheckpointError(f"{self.spec.name}: {self._explain_non_finite()}")
            self.outcome[what] = sums
        return stats[-1]

    def produce(self, rows: range, stats: Sequence[Measures], device: str) -> Tensor:
        raise NotImplementedError("a comparison produces nothing")

    def _clear_other_rows(self, rows: range, stacked: Tensor, width: int) -> int:
        """Set the rows whose tokens differ to zero, and return the number of elements in the other rows."""
        if self.shared is None:
            return len(rows) * width
        same_rows = self.shared[rows.start : rows.stop]
        if not bool(same_rows.all()):
            stacked[:-1].view(-1, len(rows), width)[:, ~same_rows] = 0
        return int(same_rows.sum()) * width

    def _explain_non_finite(self) -> str:
        return (
            f"{' or '.join(repr(source.model) for source in self.sources)} has NaN or infinite values, or "
            "values too large to be compared; make it again"
        )


def _join_sums(measures: Sequence[Measures]) -> Measures:
    names = measures[0] if measures else ()
    return {name: functools.reduce(torch.add, (one[name] for one in measures)) for name in names}


def _pair_sums(first: Tensor, second: Tensor, spare: Tensor, elements: int) -> Tensor:
    """Return the five sums of PairSums, float64 [5]."""
    torch.mul(first, second, out=spare)
    conflicts = _count_negative(spare)
    torch.sub(second, first, out=spare)
    squares = [_sum_squares(one) for one in (first, second, spare)]
    return torch.tensor([elements, *squares, conflicts], dtype=torch.float64)


def _sum_squares(values: Tensor) -> float:
    parts = torch.split(values, _FLOAT32_SUM_ELEMENTS)
    return math.fsum(float(torch.dot(part, part)) for part in parts)


def _count_negative(values: Tensor) -> int:
    """Return the number of values below zero; NumPy counts several times as fast as torch."""
    if values.device.type != "cpu":
        return int(torch.count_nonzero(values < 0))
    import numpy as np

    below = scratch("below", values.numel(), torch.bool).numpy()
    return int(np.count_nonzero(np.less(values.numpy(), 0, out=below)))

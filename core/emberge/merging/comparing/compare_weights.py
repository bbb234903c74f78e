"""WeightComparison of two model folders' weights: tensors matched by name, read once, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from emberge.contracts import Machine, Model
from emberge.errors import CheckpointError
from emberge.merging.comparing.comparison import PairSums, WeightComparison
from emberge.model_folder import Checkpoint, ModelPair
from emberge.tensor_files import TensorSpec
from emberge.tensor_names import Names, Part, is_buffer, is_vocabulary, layer_of, part_of
from emberge.wording import count_by_first_word, count_noun, join_some

if TYPE_CHECKING:
    from emberge.merging.comparing.compare_job import CompareJob


def compare_weights(
    first: Model, second: Model, base: Model | None = None, *, machine: Machine | None = None
) -> WeightComparison:
    """Compare the floating-point weights of two models, and their changes from a `base` if one is given.

    Tensors are matched by their names without a wrapper's prefix, and rows of vocabularies by token.
    Numbers do not depend on the number of threads.

    Raises:
        CheckpointError: when a folder has no safetensors, the models have no tensor in common, or a tensor
            has NaN or infinite values.
    """
    found = _match([first, second, *([base] if base is not None else [])])
    if not found.pairs:
        raise CheckpointError(
            f"'{second.name}' and '{first.name}' have no tensor in common"
            + "".join(f"; {note}" for note in found.notes)
        )
    jobs = _measured(found, machine or Machine())
    weights: dict[tuple[str, Part], PairSums] = {}
    changes: dict[tuple[str, Part], PairSums] = {}
    for job in jobs:
        place = layer_of(job.spec.name), part_of(job.spec.name, job.spec.shape)
        for into, what in ((weights, "weights"), (changes, "changes")):
            if what in job.outcome:
                into[place] = into.get(place, PairSums()) + job.outcome[what]
    return WeightComparison(
        first=first.name,
        second=second.name,
        base=base.name if base is not None else None,
        weights=weights,
        changes=changes,
        left_out=tuple(found.left_out),
        notes=tuple(found.notes),
    )


@dataclass
class _Matched:
    """Tensors of the models by canonical name, those that are left out, and the reasons.

    `models` are names of models; a tensor that the base lacks has two specs. `shared` marks the rows of
    vocabularies whose token is the same in all models, empty for all rows.
    """

    models: Sequence[str]
    pairs: dict[str, tuple[TensorSpec, ...]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    shared: list[bool] = field(default_factory=list)


def _measured(found: _Matched, machine: Machine) -> list[CompareJob]:
    """Measure all pairs on the machine's threads, and return their jobs."""
    import torch

    from emberge.merging.comparing.compare_job import CompareJob
    from emberge.merging.streaming.scheduler import Limits, run_jobs
    from emberge.tensor_files import FileSource, TensorReader

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
            own = shared[:rows] if shared is not None and is_vocabulary(name) else None
            jobs.append(CompareJob(TensorSpec(name, shape, "float32"), sources, own))
        units = {job.unit: [job] for job in jobs}
        run_jobs([], lambda *_: None, limits=Limits.of(machine), units=units)
    return jobs


# ── matching ────────────────────────────────────────────────────────────────────────────────────


def _match(models: Sequence[Model]) -> _Matched:
    checkpoints = [Checkpoint(model.folder) for model in models]
    names = [
        one.names_by_template(checkpoints[0], _names(model, one))
        for model, one in zip(models, checkpoints, strict=True)
    ]
    found = _Matched([model.name for model in models])
    only: dict[int, list[str]] = {0: [], 1: [], 2: []}
    others: list[str] = []
    for name in dict.fromkeys(name for own in names[:2] for name in own.specs):
        specs = [own.specs.get(name) for own in names]
        if is_buffer(name) or not all(spec.mergeable for spec in specs if spec is not None):
            continue
        a, b, *base = specs
        if a is None or b is None:
            lacking = names[0 if a is None else 1]
            if not lacking.is_tied_copy(name):
                only[1 if a is None else 0].append(name)
        elif not _alike(name, a, b):
            others.append(f"{name} {list(a.shape)} and {list(b.shape)}")
            found.left_out.append(name)
        elif base and (base[0] is None or not _alike(name, a, base[0])):
            only[2].append(name)
            found.pairs[name] = (a, b)
        else:
            found.pairs[name] = (a, b, *(one for one in base if one is not None))
    found.left_out += [*only[0], *only[1]]
    found.notes += _only_notes(found.models, only)
    if others:
        found.notes.append(f"{_have(len(others))} other shapes: {join_some(others, 3)}")
    _match_rows(found, checkpoints)
    return found


def _names(model: Model, checkpoint: Checkpoint) -> Names:
    names = checkpoint.names
    if model.adapter is None:
        return names
    from emberge.merging.adapters.adapter_reader import adapted_names

    adapted = adapted_names(names, checkpoint, model.adapter)
    assert adapted is not None  # as all of it was asked for
    return adapted


def _alike(name: str, first: TensorSpec, second: TensorSpec) -> bool:
    """Return whether shapes are equal, or differ only in the number of rows of a vocabulary."""
    rows = is_vocabulary(name) and bool(first.shape) and bool(second.shape)
    return first.shape[rows:] == second.shape[rows:]


def _only_notes(models: Sequence[str], only: Mapping[int, Sequence[str]]) -> Iterator[str]:
    for place, names in only.items():
        if names and place == 2:
            yield f"the base lacks it, or has it in another shape: {count_by_first_word(names)}"
        elif names:
            yield f"only in '{models[place]}': {count_by_first_word(names)}"


def _have(count: int) -> str:
    return f"{count_noun(count, 'tensor')} {'has' if count == 1 else 'have'}"


def _match_rows(found: _Matched, checkpoints: Sequence[Checkpoint]) -> None:
    """Mark the rows of vocabularies whose token is the same in all models, and note the others."""
    counts = {
        spec.shape[0]
        for name, specs in found.pairs.items()
        if is_vocabulary(name)
        for spec in specs
    }
    if not counts:
        return
    least = min(counts)
    if len(counts) > 1:
        sizes = " and ".join(map(str, sorted(counts)))
        found.notes.append(f"vocabularies have {sizes} rows; the first {least} are compared")
    if all(ModelPair(checkpoints[0], other).same_tokenizer for other in checkpoints[1:]):
        return
    from emberge.merging.tokens.tokenizer import Tokenizer

    read = [Tokenizer.read(one) for one in checkpoints]
    known = [one.texts for one in read if one is not None]
    found.shared = [len({texts.get(i) for texts in known}) <= 1 for i in range(least)]
    apart = found.shared.count(False)
    if len(known) < len(read):
        found.notes.append("not every model has a tokenizer, so rows are compared by number")
    if apart:
        found.notes.append(
            f"{count_noun(apart, 'row')} of {least} of the vocabularies are for other tokens and are left out"
        )
    else:
        found.shared = []

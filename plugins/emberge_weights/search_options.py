"""Options of a search for weights, and the problems that can be found before any work."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from emberge import (
    Artifact,
    Backbone,
    Count,
    DataError,
    EvalSet,
    Expected,
    ModelRef,
    NumberRange,
    Preflight,
    Problem,
    Reader,
    Requires,
    Stage,
    Step,
    TextLength,
    WholeNumber,
    component,
)
from emberge.data import check_eval_sets, lacking_half, pick_eval_sets
from emberge.merging import MergeInput
from emberge.model_folder import TextLimit, read_settings

from emberge_weights.members import plan_of, plan_problems
from emberge_weights.weight_sets import (
    SetEntry,
    WeightSet,
    describe_few,
    read_set,
    unusable,
)

# Share of queries up to which sets may have some in common.
SHARED = 0.05
# Hashes of queries by the name of their set.
Keys = Mapping[str, frozenset[bytes]]


@dataclass(frozen=True, kw_only=True)
class SearchOptions(Step):
    """Models, sets and limits of a search."""

    models: tuple[ModelRef, ...]
    """The models to merge."""
    base: ModelRef | None = None
    """Common ancestor of the models; it becomes a member and may get a weight."""
    base_share: Annotated[float, NumberRange(least=0, below=1), Requires("base")] = 0.0
    """Share of the base in the equal weights, which stay where no others are clearly better. If they are not
    clearly better than the base alone either, the base gets a half."""
    data: tuple[SetEntry, ...]
    """Evaluation sets to choose by; their `dev` halves are used."""
    elsewhere: tuple[SetEntry, ...] = ()
    """Sets of other domains: each weighting's gain in `data` is shown with its loss on these sets."""
    candidates: Count = 1000
    """Number of weightings to score."""
    max_length: TextLength | None = None
    """Largest number of tokens of a text; by default the models' own limit."""
    backbone: Backbone = component("text_encoder")
    """Backbone that loads the checkpoints."""
    strategy: Stage = component("linear")
    """Strategy that merges the members: a weighted mean."""
    seed: WholeNumber | None = None
    """Seed of candidates and halves; by default the recipe's."""


def problems(step: SearchOptions, context: Preflight) -> Iterator[Problem]:
    """Yield problems of the options, the sets and the models of a search."""
    if not step.data:
        yield context.problem("data names no evaluation set", "data")
    yield from _check_sets(step, context)
    yield from _check_models(step, context)


def _check_sets(step: SearchOptions, context: Preflight) -> Iterator[Problem]:
    keys: dict[str, Keys] = {}
    for option in ("data", "elsewhere"):
        entries: Sequence[SetEntry] = getattr(step, option)
        faults = list(_set_faults(entries, context))
        yield from (context.problem(fault, option) for fault in faults)
        sets = [] if faults else list(_read_seen_sets(entries, context))
        keys[option] = {weight_set.name: weight_set.keys for weight_set in sets}
        if option == "data" and not faults:
            few = (one.describe_few() for one in sets)
            yield from (context.problem(fault, option) for fault in few if fault)
            keys["their test halves"] = _test_halves(step, context)
    for option in ("elsewhere", "their test halves"):
        for fault, severe in _check_overlaps(keys["data"], keys.get(option, {}), option):
            yield context.problem(fault, "data") if severe else context.warning(fault, "data")
    if any(entry.split == "test" for entry in step.data):
        yield context.warning(
            "weights are chosen on a test half; what is reported on it will look better than it is",
            "data",
        )


def _test_halves(step: SearchOptions, context: Preflight) -> Keys:
    """Return hashes of the queries in the test halves of sets whose dev halves decide."""
    test_entries = []
    for entry in step.data:
        if entry.split == "dev":
            names = [*_list_with_test_half(entry, context)]
            test_entries += [replace(entry, only=tuple(names), split="test")] if names else []
    return {
        weight_set.name: weight_set.keys for weight_set in _read_seen_sets(test_entries, context)
    }


def _list_with_test_half(entry: SetEntry, context: Preflight) -> Iterator[str]:
    """Yield the names of a catalogue's sets that have a test half, too; a file of rows has none."""
    try:
        sets = pick_eval_sets(entry, readers=context.readers, resolve=context.data, split="test")
    except DataError:
        return
    for eval_set in sets:
        is_part = eval_set.rows is not None and eval_set.rows.path == context.data(entry.path)
        if not is_part and lacking_half(eval_set, "test") is None:
            yield eval_set.name


@dataclass(frozen=True, slots=True)
class SeenSet:
    """Facts of a set that a check remembers: name, number of queries or pairs, and their hashes."""

    name: str
    unit: str
    count: int
    keys: frozenset[bytes]

    def describe_few(self) -> str | None:
        """Return why the set is too small to choose by; None if it is not."""
        return describe_few(self.name, self.unit, self.count)


def _read_seen_sets(entries: Sequence[SetEntry], context: Preflight) -> Iterator[SeenSet]:
    """Yield the sets of entries; steps of one recipe that share a set read it once."""
    for entry in entries:
        for eval_set in pick_eval_sets(
            entry, readers=context.readers, resolve=context.data, split=entry.split
        ):
            files = [file for _, file in eval_set.files()]
            state = tuple((str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files)
            yield _read_seen_set(entry, eval_set, tuple(context.readers), state)


@functools.lru_cache(maxsize=256)
def _read_seen_set(
    entry: SetEntry,
    eval_set: EvalSet,
    readers: tuple[Reader, ...],
    state: tuple[tuple[str, int, int], ...],  # noqa: ARG001 - changed files are read again
) -> SeenSet:
    weight_set = read_set(eval_set, entry, readers)
    return SeenSet(
        weight_set.name, weight_set.unit, len(weight_set.queries), _hash_queries(weight_set)
    )


def _set_faults(entries: Sequence[SetEntry], context: Preflight) -> Iterator[str]:
    for entry in entries:
        sets, faults = check_eval_sets(context, entry, entry.split)
        yield from faults
        yield from (fault for weight_set in sets if (fault := unusable(weight_set)))


def _hash_queries(weight_set: WeightSet) -> frozenset[bytes]:
    """Return hashes of a set's queries; for a set of pairs, hashes of both texts."""
    pairs = (
        zip(weight_set.queries, weight_set.documents, strict=True)
        if weight_set.gold
        else ((q,) for q in weight_set.queries)
    )
    return frozenset(hashlib.sha256("\0".join(pair).encode()).digest() for pair in pairs)


def _check_overlaps(data: Keys, others: Keys, location: str) -> Iterator[tuple[str, bool]]:
    """Yield (message on queries that two sets share, whether these are more than a few)."""
    for name, keys in data.items():
        for other, other_keys in others.items():
            shared_count = len(keys & other_keys)
            if shared_count:
                fault = (
                    f"set '{name}' shares {shared_count:,} of {len(keys):,} queries with '{other}' of "
                    f"{location}; "
                    "weights chosen on what they are judged by look better than they are: take other queries"
                )
                yield fault, shared_count > SHARED * len(keys)


def _check_models(step: SearchOptions, context: Preflight) -> Iterator[Problem]:
    """Check from headers alone that the members can be merged; yield each problem."""
    references = [*step.models, *([step.base] if step.base is not None else [])]
    for text, count in Counter(reference.text for reference in references).items():
        if count > 1:
            yield context.problem(f"'{text}' is named {count} times; once is enough", "models")
    if len(references) < 2 and not any(reference.part for reference in references):
        yield context.problem("weights need two models, or one and its base", "models")
    context.expect(
        Expected(Artifact(kind="file", details={"models": [model.text for model in references]}))
    )
    inputs = []
    for reference in references:
        folder = context.model(reference)
        if folder is not None:
            inputs.append(MergeInput(reference.text, folder, adapter=context.adapter(reference)))
            yield from _check_model(step, reference, folder, context)
    if len({model.name for model in inputs}) > 1:
        for fault in plan_problems(plan_of(inputs, step.strategy)):
            yield context.problem(fault, "models")


def _check_model(
    step: SearchOptions, reference: ModelRef, folder: Path, context: Preflight
) -> Iterator[Problem]:
    """Yield problems of one model."""
    problems = step.backbone.describe(folder).problems
    for fault in problems or TextLimit.read(folder).problems(step.max_length):
        yield context.problem(f"{reference}: {fault}", "models")
    similarity = read_settings(folder).get("similarity_fn_name") or "cosine"
    if similarity != "cosine":
        yield context.warning(
            f"{reference} compares by {similarity}, and here all are compared by cosine", "models"
        )

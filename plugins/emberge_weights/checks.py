"""Problems of a search that show before any work: of its sets and of its models."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from emberge import DataError, Preflight, Problem
from emberge.engine import MergeInput, MergeRequest, lacking_half, pick_eval_sets, plan_merge

from emberge_weights.weight_sets import FEWEST, SetEntry, WeightSet, read_sets, unusable

if TYPE_CHECKING:
    from emberge_weights.find_weights import FindWeights

__all__ = ["problems"]

# Standard deviation of the difference of two models on a query, in points of nDCG@10; measured.
_SPREAD = 15.0
# Hashes of queries by the name of their set.
Keys = Mapping[str, frozenset[bytes]]


def problems(step: FindWeights, context: Preflight) -> Iterator[Problem]:
    """Yield problems of the options, the sets and the models of a search."""
    if not step.data:
        yield context.problem("data names no evaluation set", "data")
    if step.candidates < 1:
        yield context.problem(f"candidates is 1 or more, not {step.candidates}", "candidates")
    yield from _set_problems(step, context)
    yield from _model_problems(step, context)


def _set_problems(step: FindWeights, context: Preflight) -> Iterator[Problem]:
    keys: dict[str, Keys] = {}
    for option in ("data", "elsewhere", "tests"):
        entries: Sequence[SetEntry] = getattr(step, option)
        faults = list(_set_faults(step, entries, context))
        yield from (context.problem(fault, option) for fault in faults)
        sets = [] if faults else list(_read(step, entries, context))
        keys[option] = {one.name: _keys(one) for one in sets}
        if option == "data":
            yield from (context.problem(fault, option) for fault in _too_few(sets))
    for option in ("elsewhere", "tests"):
        for fault in _overlaps(keys["data"], keys[option], option):
            yield context.problem(fault, "data")


def _read(
    step: FindWeights, entries: Sequence[SetEntry], context: Preflight
) -> Iterator[WeightSet]:
    return read_sets(entries, context.data, context.readers, step.metric)


def _set_faults(
    step: FindWeights, entries: Sequence[SetEntry], context: Preflight
) -> Iterator[str]:
    for entry in entries:
        try:
            path = context.data(entry.path)
            for one in pick_eval_sets(path, entry.only) if path is not None else ():
                fault = lacking_half(one, entry.split) or unusable(one, step.metric)
                if fault is not None:
                    yield fault
        except DataError as error:
            yield str(error)


def _too_few(sets: Sequence[WeightSet]) -> Iterator[str]:
    for one in sets:
        count = len(one.queries)
        if count < FEWEST:
            least = 2 * _SPREAD / count**0.5
            yield (
                f"set '{one.name}' has {count} {one.unit}s; with so few, differences below about "
                f"{least:.0f} points cannot be told from chance, and weights found are chance; take a set "
                f"with {FEWEST} or more"
            )


def _keys(one: WeightSet) -> frozenset[bytes]:
    """Return hashes of a set's queries, of pairs with both texts."""
    pairs = (
        zip(one.queries, one.documents, strict=True) if one.gold else ((q,) for q in one.queries)
    )
    return frozenset(hashlib.sha256("\0".join(pair).encode()).digest() for pair in pairs)


def _overlaps(data: Keys, others: Keys, option: str) -> Iterator[str]:
    for name, keys in data.items():
        for other, theirs in others.items():
            shared = len(keys & theirs)
            if shared:
                yield (
                    f"set '{name}' shares {shared:,} of {len(keys):,} queries with '{other}' of {option}; "
                    "weights chosen on what they are judged by look better than they are: take the dev half"
                )


def _model_problems(step: FindWeights, context: Preflight) -> Iterator[Problem]:
    """Yield what keeps the members from being merged by their weights, seen without weights."""
    references = [*step.models, *([step.base] if step.base is not None else [])]
    inputs = []
    for reference in dict.fromkeys(references):
        folder = context.model(reference)
        inputs.append(MergeInput(reference.text, folder, adapter=context.adapter(reference)))
        for fault in step.backbone.check(folder) if folder is not None else ():
            yield context.problem(f"{reference}: {fault}", "models")
    if len([one for one in inputs if one.folder is not None]) < 2:
        return
    plan = plan_merge(MergeRequest(inputs=tuple(inputs), strategy=(step.strategy,)))
    for problem in plan.problems:
        yield context.problem(str(problem), "models")
    if plan.tokens is not None:
        yield context.problem(
            "the models' tokenizers differ, so that the same text is other tokens to each and their ensemble "
            "foretells no merge; take models of one tokenizer",
            "models",
        )

"""Real merges of some candidates, to compare predicted with real scores."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from emberge import Model, Stage, Workspace, stable_seed
from emberge.merging import MergeInput, MergeRequest, merge_checkpoints
from numpy.typing import NDArray

from emberge_weights.candidates import EQUAL, Search, from_equal, simplest
from emberge_weights.members import SetEmbedder, SideVectors, member_inputs
from emberge_weights.set_scores import score_set
from emberge_weights.unit_scores import UnitScores, mean_score
from emberge_weights.weight_sets import WeightSet

Array = NDArray[np.float64]
# Nearer than this to another anchor a candidate is left out: it would add nothing.
APART = 0.05


@dataclass(frozen=True, eq=False)
class RealMerges:
    """Indices of the merged candidates, and their merges' scores: in the data, elsewhere, on the tests.

    The first `anchors` candidates are anchors, and the others are trials. The first anchor has equal weights.
    """

    places: Sequence[int]
    anchors: int
    scores: Sequence[UnitScores]
    elsewhere: Sequence[UnitScores]
    tests: Sequence[UnitScores]

    @property
    def means(self) -> Array:
        """Mean real score of each merge over the sets."""
        return mean_score([set_scores.contributions() for set_scores in self.scores])

    def final(self, search: Search) -> int:
        """Return the index of the candidate to take, based on the anchors' real scores."""
        if not search.choice.gain.clear:
            place = search.choice.place
            return place if place in self.places else EQUAL
        rows = list(range(self.anchors))
        contributions = [set_scores.select(rows).contributions() for set_scores in self.scores]
        places = list(self.places[: self.anchors])
        return places[simplest(search.weights[places], contributions)]


def pick_anchors(search: Search, count: int) -> list[int]:
    """Return the indices of the candidate with equal weights, of the choice, and of the best others."""
    picked = [EQUAL] if count else []
    for candidate in [search.choice.place, *np.argsort(-search.means, kind="stable").tolist()]:
        distances = [from_equal(search.weights[[other, candidate]])[1] for other in picked]
        if len(picked) < count and min(distances, default=0.0) > APART:
            picked.append(candidate)
    return picked


def pick_trials(search: Search, count: int, fixed: int, seed: int) -> list[int]:
    """Return the indices of `count` randomly chosen candidates, never of the first `fixed`."""
    rng = np.random.default_rng(stable_seed(seed, "trials"))
    random = rng.permutation(np.arange(fixed, len(search.weights)))
    return [int(candidate) for candidate in random[:count]]


def score_merges(
    search: Search,
    places: Sequence[int],
    anchors: int,
    sets: Sequence[WeightSet],
    members: Sequence[Sequence[SideVectors]],
    merged: Sequence[Sequence[SideVectors]],
) -> RealMerges:
    """Return the scores of merged models from their vectors by set.

    The order of sets is: the data, the sets elsewhere, and the tests.
    """
    all_members = [*members, *merged]
    single_weightings = np.eye(len(all_members))
    scores = [
        score_set(
            weight_set,
            [member[number] for member in all_members],
            single_weightings[len(members) :],
            single_weightings,
            peers=len(members),
        )
        for number, weight_set in enumerate(sets)
    ]
    data_end = len(search.scores)
    elsewhere_end = data_end + len(search.elsewhere)
    return RealMerges(
        places, anchors, scores[:data_end], scores[data_end:elsewhere_end], scores[elsewhere_end:]
    )


def merge_and_embed(
    models: Sequence[Model],
    members: Sequence[Sequence[SideVectors]],
    weights: Array,
    strategy: Stage,
    embedder: SetEmbedder,
) -> Sequence[SideVectors]:
    """Return the vectors of all sets by the merge with these weights; for a single model, its own vectors."""
    used_members = np.flatnonzero(weights).tolist()
    if len(used_members) == 1:
        return members[used_members[0]]
    inputs = member_inputs(models, weights.tolist())
    with merged_folder(inputs, strategy, embedder.workspace) as folder:
        return embedder.merged(folder, folder.name, describe_merge(models, weights))


def describe_merge(models: Sequence[Model], weights: Array) -> str:
    """Return the weights and names of the members that have a weight, as text."""
    used_members = np.flatnonzero(weights).tolist()
    return ", ".join(f"{weights[number]:.2f} {models[number].name}" for number in used_members)


@contextmanager
def merged_folder(
    inputs: Sequence[MergeInput], strategy: Stage, workspace: Workspace
) -> Iterator[Path]:
    """Yield the folder for merged models, named by a hash of its content, and remove it at the end."""
    facts = [(member.fingerprint, member.weight.plain()) for member in inputs]
    key = hashlib.sha256(json.dumps([facts, repr(strategy)]).encode()).hexdigest()
    out = workspace.work / "anchors" / key
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        if not out.is_dir():
            request = MergeRequest(inputs=tuple(inputs), strategy=(strategy,))
            merge_checkpoints(request, out, machine=workspace.machine)
        yield out
    finally:
        shutil.rmtree(out, ignore_errors=True)

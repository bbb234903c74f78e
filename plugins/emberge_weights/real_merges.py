"""Real merges of some candidates, to compare foretold with real scores."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from emberge import Model, Stage
from emberge.merging import MergeRequest, merge_checkpoints

from emberge_weights.candidates import EQUAL_CANDIDATE, measure_distance_from_equal
from emberge_weights.judged_sets import JudgedSet
from emberge_weights.members import MemberVectors, SetEmbedder, SetVectors, build_member_inputs
from emberge_weights.search import Search, choose_simplest
from emberge_weights.set_scores import score_set
from emberge_weights.unit_scores import Array, UnitScores, compute_mean_score, list_contributions

# Candidates that are merged, equal weights among them.
MERGES = 5
# Nearer than this to another merge a candidate is left out: it would add nothing.
LEAST_DISTANCE = 0.05


@dataclass(frozen=True, eq=False)
class RealMerges:
    """Indices of the merged candidates, the first with equal weights, and the scores of their merges."""

    candidates: Sequence[int]
    scores: Sequence[UnitScores]

    @property
    def means(self) -> Array:
        """Mean real score of each merge over the sets."""
        return compute_mean_score(list_contributions(self.scores))

    def choose_final(self, search: Search) -> int:
        """Return the index of the candidate to take, based on the merges' real scores."""
        if not search.choice.gain.is_clear:
            choice = search.choice.index
            return choice if choice in self.candidates else EQUAL_CANDIDATE
        candidates = list(self.candidates)
        contributions = list_contributions(self.scores)
        return candidates[choose_simplest(search.weights[candidates], contributions)]


def pick_merges(search: Search) -> list[int]:
    """Return the indices of the candidate with equal weights, of the choice, and of the best others."""
    picked = [EQUAL_CANDIDATE]
    for candidate in [search.choice.index, *np.argsort(-search.means, kind="stable").tolist()]:
        distances = [
            measure_distance_from_equal(search.weights[[other, candidate]])[1] for other in picked
        ]
        if len(picked) < MERGES and min(distances) > LEAST_DISTANCE:
            picked.append(candidate)
    return picked


def score_merges(
    candidates: Sequence[int],
    sets: Sequence[JudgedSet],
    vectors_by_member: MemberVectors,
    vectors_by_merge: MemberVectors,
) -> RealMerges:
    """Return the scores of merged models from their vectors and, to rank documents, the members'."""
    all_vectors = [*vectors_by_member, *vectors_by_merge]
    single_weightings = np.eye(len(all_vectors))
    scores = [
        score_set(
            judged_set,
            [vectors[number] for vectors in all_vectors],
            single_weightings[len(vectors_by_member) :],
            single_weightings,
        )
        for number, judged_set in enumerate(sets)
    ]
    return RealMerges(candidates, scores)


def merge_and_embed(
    models: Sequence[Model],
    vectors_by_member: MemberVectors,
    weights: Array,
    strategy: Stage,
    embedder: SetEmbedder,
) -> Sequence[SetVectors]:
    """Return the vectors of all sets by the merge with these weights; for a single model, its own vectors."""
    used_members = np.flatnonzero(weights).tolist()
    if len(used_members) == 1:
        return vectors_by_member[used_members[0]]
    inputs = build_member_inputs(models, weights.tolist())
    facts = [(member.fingerprint, member.weight.plain()) for member in inputs]
    key = hashlib.sha256(json.dumps([facts, repr(strategy)]).encode()).hexdigest()
    workspace = embedder.workspace
    out = workspace.work / "merges" / key
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        if not out.is_dir():
            request = MergeRequest(inputs=tuple(inputs), strategy=(strategy,))
            merge_checkpoints(request, out, machine=workspace.machine)
        return embedder.embed_merged(out, key, describe_merge(models, weights))
    finally:
        shutil.rmtree(out, ignore_errors=True)


def describe_merge(models: Sequence[Model], weights: Array) -> str:
    """Return the weights and names of the members that have a weight, as text."""
    used_members = np.flatnonzero(weights).tolist()
    return ", ".join(f"{weights[number]:.2f} {models[number].name}" for number in used_members)

"""The `find_weights` step: weights of a merge from the embeddings of its members."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from emberge import Artifact, Preflight, Problem, Workspace

from emberge_weights.search_options import SearchOptions
from emberge_weights.weight_sets import read_sets, require_sets


@dataclass(frozen=True, kw_only=True)
class FindWeights(SearchOptions):
    """Weights of a merge, found in minutes from embeddings alone.

    A merge of models that were trained from one base behaves like their ensemble: before it is scaled to
    length one, the merged model's embedding of a text is close to the weighted mean of the models'
    embeddings. So every member embeds the texts of `data` once, and any weighting is scored without being
    merged, by the metric of each task: nDCG@10 of retrieval, the rank correlation of sts, the average
    precision of pair classification. The base is a member like the models: it costs no training and restores
    what they forgot. With `base_share: 0.33` it has this share in the equal weights too, which stay where no
    others are clearly better. Where even these are not clearly better than the base alone, as with data that
    the base has learned before, the base gets a half.

    Candidates are equal weights, every member alone, means without one model, steps towards the base and
    random weights. The best of many candidates may be best by chance, so the choice is tested first: a
    weighting is chosen on one half of the queries and compared with equal weights on the other half. If this
    gain is not clearly above zero, the result is equal weights; else it is the weighting nearest to equal
    weights within one standard error of the best. Five candidates are then really merged, and the scores of
    these merges decide.

    The result is `weights.json`, which `merge: {weights: $found}` reads, and a figure of the report. In
    related work, weights are searched by merging and scoring (LM-Cocktail, arXiv:2311.13534), and by
    gradients (Self Positioning, arXiv:2410.15035).

    Example:
        found:
          find_weights:
            models: [./a, ./b]
            base: ./base
            data: {path: ./data, only: [medquad, stsb_en]}
        merged:
          merge: {models: [./a, ./b, ./base], weights: $found}
    """

    produces = "file"
    loads = ("torch",)

    def check(self, context: Preflight) -> Iterator[Problem]:
        from emberge_weights.search_options import problems

        yield from problems(self, context)

    def run(self, workspace: Workspace) -> Artifact:
        from emberge_weights.candidates import search
        from emberge_weights.members import SetEmbedder, require_members
        from emberge_weights.real_merges import (
            MERGES,
            describe_merge,
            merge_and_embed,
            pick_merges,
            score_merges,
        )
        from emberge_weights.search_result import SearchResult

        sets = list(read_sets(self.data, workspace.data, workspace.readers))
        require_sets(sets)
        models = [model for reference in self.models for model in workspace.models(reference)]
        if self.base is not None:
            models.append(workspace.model(self.base))
        require_members(models, self.strategy)
        embedder = SetEmbedder(
            sets=sets,
            backbone=self.backbone,
            max_length=self.max_length,
            workspace=workspace,
        )
        models_to_embed = len(models) + MERGES
        members = []
        for number, model in enumerate(models, 1):
            with workspace.part("model", number, models_to_embed, model.name):
                members.append(embedder.member(model))
        found_search = search(
            sets,
            members,
            base=self.base is not None,
            candidates=self.candidates,
            seed=workspace.seed,
            base_share=self.base_share,
        )
        places = pick_merges(found_search)
        merged = []
        for number, candidate in enumerate(places, len(models) + 1):
            weights = found_search.weights[candidate]
            with workspace.part("model", number, models_to_embed, describe_merge(models, weights)):
                merged.append(merge_and_embed(models, members, weights, self.strategy, embedder))
        real = score_merges(places, sets, members, merged)
        return SearchResult(models, found_search, real).write(workspace)

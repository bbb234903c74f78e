"""The `find_weights` step: weights of a merge from the embeddings of its members."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from emberge import Artifact, Preflight, Problem, Workspace

from emberge_weights.search_options import SearchOptions
from emberge_weights.weight_sets import read_sets


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
    weights within one standard error of the best. Some candidates are then really merged, and the scores of
    these merges decide.

    `metric: agreement` needs no labels: it is the correlation of a weighting's similarities with the mean
    similarities of the members. `metric: neighbours` is the share of the ten nearest texts that both have in
    common. These metrics work for sets of any kind.

    `trials: 20` also merges 20 random weightings. Two results show how much a search by embeddings is worth
    for these models: the rank correlation of predicted and real scores, and the comparison of the choice with
    the best random weighting on the queries of `tests`.

    `layers: true` continues from the chosen weights: gradients of soft scores (InfoNCE of queries, CoSENT's
    order of pairs) fit a weight for each member and layer through the forward pass of the merge. AdaMerging
    (arXiv:2310.02575) does the same with a loss without labels. The weights are fitted on each half of the
    queries, merged for real, and compared on the other half. If their gain is not clearly above zero, each
    member keeps one weight for all layers.

    The result is `weights.json`, which `merge: {weights: $found}` reads, and a table. In related work,
    weights are searched by merging and scoring (LM-Cocktail, arXiv:2311.13534), by gradients (Self
    Positioning, arXiv:2410.15035), and as a proxy for mixtures of data (MergeMix, arXiv:2601.17858).

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
        from emberge_weights.candidates import fixed_candidates, search
        from emberge_weights.layers.layer_search import LayerSearch, open_members
        from emberge_weights.members import SetEmbedder, plan_members
        from emberge_weights.real_merges import (
            describe_merge,
            merge_and_embed,
            pick_anchors,
            pick_trials,
            score_merges,
        )
        from emberge_weights.search_result import SearchResult

        sets, elsewhere, tests = (
            list(read_sets(entries, workspace.data, workspace.readers, self.metric))
            for entries in (self.data, self.elsewhere, self.tests if self.trials else ())
        )
        models = [model for reference in self.models for model in workspace.models(reference)]
        if self.base is not None:
            models.append(workspace.model(self.base))
        plan = plan_members(models, self.strategy)
        # Before the search, so that a model without layers to weigh is refused at once.
        by_layer = open_members(models, self.backbone, plan, workspace) if self.layers else None
        embedder = SetEmbedder(
            sets=[*sets, *elsewhere, *tests],
            backbone=self.backbone,
            prompt=self.prompt,
            max_length=self.max_length,
            workspace=workspace,
        )
        models_to_embed = len(models) + self.anchors + self.trials + bool(self.layers)
        members = []
        for number, model in enumerate(models, 1):
            with workspace.part("model", number, models_to_embed, model.name):
                members.append(embedder.member(model))
        seed = workspace.seed
        base = self.base is not None
        found_search = search(
            sets,
            elsewhere,
            members,
            base=base,
            candidates=self.candidates,
            seed=seed,
            base_share=self.base_share,
        )
        anchors = pick_anchors(found_search, self.anchors)
        fixed = len(fixed_candidates(len(models) - base, base, self.base_share))
        places = [*anchors, *pick_trials(found_search, self.trials, fixed, seed)]
        merged = []
        for number, candidate in enumerate(places, len(models) + 1):
            weights = found_search.weights[candidate]
            with workspace.part("model", number, models_to_embed, describe_merge(models, weights)):
                merged.append(merge_and_embed(models, members, weights, self.strategy, embedder))
        real = None
        if places:
            real = score_merges(found_search, places, len(anchors), embedder.sets, members, merged)
        licences = [plan.licences.get(member.name) for member in plan.request.inputs]
        result = SearchResult(models, licences, found_search, real, base)
        if by_layer is not None:
            layered = LayerSearch(
                models=models,
                members=members,
                sets=sets,
                blocks=by_layer[0],
                forward=by_layer[1],
                strategy=self.strategy,
                embedder=embedder,
                seed=seed,
            )
            with workspace.part("model", models_to_embed, models_to_embed, "weights by layer"):
                layers = layered.run(found_search.weights[result.chosen])
            result = replace(result, layers=layers)
        return result.write(workspace)

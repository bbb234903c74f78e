"""The `find_weights` step: weights of a merge from the embeddings of its members, before it is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from emberge import (
    Artifact,
    Backbone,
    ModelRef,
    Preflight,
    Problem,
    Stage,
    Step,
    Workspace,
    component,
)

from emberge_weights.weight_sets import Metric, SetEntry, read_sets

__all__ = ["FindWeights"]


@dataclass(frozen=True, kw_only=True)
class FindWeights(Step):
    """Weights of a merge, found in minutes from embeddings alone.

    Models that grew from one base merge like their ensemble: the merged model's embedding of a text is close
    to the weighted mean of theirs, before it is brought to length one. So every member embeds the texts of
    `data` once, and any weighting is scored by the task's own metric without being merged: nDCG@10 of
    retrieval, the rank correlation of sts, the average precision of pair classification. The base is a member
    like the others: it costs no training and takes back what was forgotten.

    Candidates are equal weights, every member alone, means without one model, steps towards the base and
    random weights. Choosing among many would find chance, so it is tried first: chosen on one half of the
    queries, compared with equal weights on the other. Unless that gain is clearly above zero, the result is
    equal weights; else it is the weighting nearest to them within one standard error of the best. Some
    are merged for real, and the last word is had by their scores.

    `metric: agreement` needs no labels: it is the correlation of a weighting's similarities with the mean
    of the members' own, and `neighbours` the share of ten nearest texts that both have. These work for sets
    of any kind.

    The result is `weights.json`, which `merge: {weights: $found}` reads, and a table. Weights are searched by
    merging and scoring in LM-Cocktail (arXiv:2311.13534), by gradients in Self Positioning
    (arXiv:2410.15035), and by a proxy for mixtures of data in MergeMix (arXiv:2601.17858).

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

    models: tuple[ModelRef, ...]
    """The models to merge."""
    base: ModelRef | None = None
    """Their common ancestor, a member that may have a weight."""
    data: tuple[SetEntry, ...]
    """Evaluation sets to choose by, of which `dev` halves are taken."""
    elsewhere: tuple[SetEntry, ...] = ()
    """Sets of other domains: what each weighting gains in `data` is shown beside what it loses here."""
    tests: tuple[SetEntry, ...] = ()
    """Sets that the result will be reported on, which `data` must not share queries with."""
    metric: Metric = "task"
    candidates: int = 1000
    """Weightings to look at."""
    anchors: int = 5
    """Weightings to merge for real, equal weights among them; what is foretold is corrected by these."""
    prompt: str | None = None
    """Text before queries, in which `{instruction}` and `{prompt}` are the set's, or else the models' own."""
    max_length: int | None = None
    """Tokens of a text at most; by default what the models read."""
    backbone: Backbone = component("text_encoder")
    """Reading of the checkpoints."""
    strategy: Stage = component("linear")
    """Mean of weights by which members are merged."""
    seed: int | None = None
    """Seed of candidates and halves; by default the recipe's."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        from emberge_weights.checks import problems

        yield from problems(self, context)

    def run(self, workspace: Workspace) -> Artifact:
        from emberge_weights.embed_sets import SetEmbedder
        from emberge_weights.member_faults import plan_members
        from emberge_weights.real_merges import merged_sides, pick_anchors, score_anchors
        from emberge_weights.result import Result
        from emberge_weights.search import search

        rows = workspace.rehearsal.rows if workspace.rehearsal else None
        sets, elsewhere = (
            list(read_sets(entries, workspace.data, workspace.readers, self.metric, rows))
            for entries in (self.data, self.elsewhere)
        )
        models = [model for reference in self.models for model in workspace.models(reference)]
        if self.base is not None:
            models.append(workspace.model(self.base))
        plan = plan_members(models, self.strategy)
        embedder = SetEmbedder(
            sets=[*sets, *elsewhere],
            backbone=self.backbone,
            prompt=self.prompt,
            max_length=self.max_length,
            workspace=workspace,
        )
        members = [embedder.member(model) for model in models]
        found = search(
            sets,
            elsewhere,
            members,
            base=self.base is not None,
            candidates=self.candidates,
            seed=workspace.seed if self.seed is None else self.seed,
        )
        places = pick_anchors(found, self.anchors)
        merged = [
            merged_sides(models, members, found.weights[place], self.strategy, embedder)
            for place in places
        ]
        anchors = score_anchors(found, places, embedder.sets, members, merged) if places else None
        licences = [plan.licences.get(one.name) for one in plan.request.inputs]
        return Result(models, licences, found, anchors, self.base is not None).write(workspace)

"""The `find_weights` step: weights of a merge from the embeddings of its members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from emberge import (
    Artifact,
    Backbone,
    Count,
    ModelRef,
    NumberRange,
    Preflight,
    Problem,
    Stage,
    Step,
    TextLength,
    WholeNumber,
    Workspace,
    component,
)
from emberge.model_folder import TextLimit, read_settings
from emberge_data import check_eval_sets

from emberge_weights.judged_sets import SetEntry, explain_unusable, read_sets, require_sets


@dataclass(frozen=True, kw_only=True)
class FindWeights(Step):
    """Weights of a merge, found in minutes from embeddings alone.

    A merge of models that were trained from one base behaves like their ensemble: before it is scaled to
    length one, the merged model's embedding of a text is close to the weighted mean of the models'
    embeddings. So every member embeds the texts of `data` once, and any weighting is scored without being
    merged, by the metric of each task: nDCG@10 of retrieval, the rank correlation of sts. The base is a
    member like the models: it costs no training and restores what they forgot. With `base_share: 0.33` it has
    this share in the equal weights too, which stay where no others are clearly better. Where even these are
    not clearly better than the base alone, as with data that the base has learned before, the base gets a
    half.

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

    models: tuple[ModelRef, ...]
    """The models to merge."""
    base: ModelRef | None = None
    """Common ancestor of the models; it becomes a member and may get a weight."""
    base_share: Annotated[float, NumberRange(least=0, below=1)] = 0.0
    """Share of the base in the equal weights, which stay where no others are clearly better. If they are not
    clearly better than the base alone either, the base gets a half."""
    data: tuple[SetEntry, ...]
    """Evaluation sets to choose by; their `dev` parts are used."""
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

    def check(self, context: Preflight) -> Iterator[Problem]:
        if not self.data:
            yield context.problem("data names no evaluation set", "data")
        if self.base_share and self.base is None:
            yield context.problem("base_share has no effect without a base", "base_share")
        yield from self._check_sets(context)
        yield from self._check_models(context)

    def _check_sets(self, context: Preflight) -> Iterator[Problem]:
        for entry in self.data:
            seen, texts = check_eval_sets(context, entry, entry.split)
            texts = [*texts, *(text for one in seen if (text := explain_unusable(one)))]
            yield from (context.problem(text, "data") for text in texts)
        if any(entry.split == "test" for entry in self.data):
            yield context.warning(
                "weights are chosen on a test part; what is reported on it will look better than it is",
                "data",
            )

    def _check_models(self, context: Preflight) -> Iterator[Problem]:
        """Yield problems of the members, which are found from headers and configs alone."""
        from emberge.merging import MergeInput

        from emberge_weights.members import describe_member_problems

        references = [*self.models, *([self.base] if self.base is not None else [])]
        for text, count in Counter(reference.text for reference in references).items():
            if count > 1:
                yield context.problem(f"'{text}' is named {count} times; once is enough", "models")
        if len(references) < 2 and not any(reference.part for reference in references):
            yield context.problem("weights need two models, or one and its base", "models")
        inputs = []
        for reference in references:
            folder = context.model(reference)
            if folder is not None:
                adapter = context.adapter(reference)
                inputs.append(MergeInput(reference.text, folder, adapter=adapter))
                yield from self._check_model(reference, folder, context)
        if len({model.name for model in inputs}) > 1:
            for problem in describe_member_problems(inputs, self.strategy):
                yield context.problem(problem, "models")

    def _check_model(
        self, reference: ModelRef, folder: Path, context: Preflight
    ) -> Iterator[Problem]:
        problems = self.backbone.describe(folder).problems
        for problem in problems or TextLimit.read(folder).describe_problems(self.max_length):
            yield context.problem(f"{reference}: {problem}", "models")
        similarity = read_settings(folder).get("similarity_fn_name") or "cosine"
        if similarity != "cosine":
            yield context.warning(
                f"{reference} compares by {similarity}, and here all are compared by cosine",
                "models",
            )

    def run(self, workspace: Workspace) -> Artifact:
        from emberge_weights.members import SetEmbedder, require_members
        from emberge_weights.real_merges import (
            MERGES,
            describe_merge,
            merge_and_embed,
            pick_merges,
            score_merges,
        )
        from emberge_weights.search import search_weights
        from emberge_weights.search_result import SearchResult

        sets = list(read_sets(self.data, workspace.data, workspace.readers))
        require_sets(sets)
        models = [model for reference in self.models for model in workspace.models(reference)]
        if self.base is not None:
            models.append(workspace.model(self.base))
        require_members(models, self.strategy)
        embedder = SetEmbedder(
            sets=sets, backbone=self.backbone, max_length=self.max_length, workspace=workspace
        )
        models_to_embed = len(models) + MERGES
        members = []
        for number, model in enumerate(models, 1):
            with workspace.part("model", number, models_to_embed, model.name):
                members.append(embedder.embed_member(model))
        found_search = search_weights(
            sets,
            members,
            base=self.base is not None,
            candidates=self.candidates,
            seed=workspace.seed,
            base_share=self.base_share,
        )
        picked = pick_merges(found_search)
        merged = []
        for number, candidate in enumerate(picked, len(models) + 1):
            weights = found_search.weights[candidate]
            with workspace.part("model", number, models_to_embed, describe_merge(models, weights)):
                merged.append(merge_and_embed(models, members, weights, self.strategy, embedder))
        real = score_merges(picked, sets, members, merged)
        return SearchResult(models, found_search, real).write(workspace)

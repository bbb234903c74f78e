"""The `stack` step: a whole search, of retrievers and a reranker, that is scored like a model."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from emberge import (
    ALL_KINDS,
    Artifact,
    ArtifactKind,
    Backbone,
    Count,
    DataError,
    Evaluator,
    Expected,
    Model,
    ModelRef,
    NonNegative,
    Preflight,
    Problem,
    Requires,
    Share,
    Step,
    Workspace,
    component,
)
from emberge.contracts import SearchStack, StackedModel

_FILE = "stack.json"
_MOST_FOUND = 4  # models whose weights are found: 56 of them are tried


@dataclass(frozen=True, kw_only=True)
class Retriever:
    """Model that finds documents, and the backbone that loads it: `{model: $sparse, backbone: splade}`."""

    model: ModelRef
    backbone: Backbone = component("text_encoder")


@dataclass(frozen=True, kw_only=True)
class Reranker:
    """Model that scores pairs of a query and a document, and the backbone that loads it."""

    model: ModelRef
    backbone: Backbone = component("cross_encoder")


@dataclass(frozen=True, kw_only=True)
class Stack(Step):
    """A whole search: a retriever finds documents, and a reranker orders the first `depth` of them anew.

    The result describes the search and has no weights. A step `evaluate` takes it in `models`, and its
    evaluator `mteb` scores it on retrieval and reranking tasks, so that a search is compared with its own
    retriever: with `require: [{model: $stack, not_worse_than: [$retriever]}]` a reranker that harms is
    refused. Documents after the first `depth` keep their order.

    Several `retrievers` are fused, such as a dense and a sparse model. `reciprocal_rank` adds 1 / (k + rank)
    over their lists (Cormack, Clarke and Büttcher, SIGIR 2009). `weighted` adds their scores, each list's
    scaled to 0 to 1, times the `weights` (a convex combination: Bruch et al., 2022, arXiv:2210.11934).
    Without `weights` the best ones are found on the tasks of `development`, by the mean of their scores,
    before any reranking: shares in steps of 0.1 for two models, and of 0.2 for more.

    A reranker need not decide alone: with `reranker_share: 0.3` the first documents are ordered by 0.3 of its
    score and 0.7 of the retriever's, both scaled to 0 to 1. `find_share: true` finds the share on
    `development`, in steps of 0.1.

    Documents that a retriever finds and scores of pairs are kept in OUT's store, so that stacks that share
    models, as of several depths, compute each of them once.

    Example:
        search:
          stack:
            retriever: ./boom
            reranker: ./reranker
            depth: 50
    """

    produces: ClassVar[ArtifactKind] = "search"
    embedding_kinds = ALL_KINDS

    retriever: Retriever | None = None
    """The model that finds documents."""
    retrievers: tuple[Retriever, ...] = ()
    """Several retrievers, in place of one."""
    reranker: Reranker | None = None
    """The model that orders the first documents anew; without it, several retrievers are fused."""
    depth: Count = 100
    """Number of documents of each query that the reranker orders."""
    reranker_share: Share = 1.0
    """Share of the reranker's scores in the order of these documents; the rest is the retrievers' scores."""
    find_share: Annotated[bool, Requires("development")] = False
    """Find the reranker's share on `development`."""
    fusion: Literal["reciprocal_rank", "weighted"] = "reciprocal_rank"
    """Fusion of the lists of several retrievers."""
    weights: tuple[NonNegative, ...] = ()
    """Weight of each retriever's scores for `weighted`, in their order."""
    development: Evaluator | None = None
    """Evaluation that finds the weights of `weighted`, and the reranker's share:
    `{mteb: {data: {path: ./sets, split: dev}}}`."""
    k: Count = 60
    """Constant of `reciprocal_rank`."""

    def describes(self, artifact: Artifact | None = None) -> SearchStack:
        reranker = self.reranker
        weights, share = self.weights, self.reranker_share
        if artifact is not None:
            weights = tuple(artifact.details["stack"]["weights"])
            share = artifact.details["stack"]["reranker_share"]
        return SearchStack(
            tuple(StackedModel(one.model, one.backbone) for one in self._finders),
            None if reranker is None else StackedModel(reranker.model, reranker.backbone),
            self.depth,
            weights,
            self.k,
            share,
        )

    @property
    def _finds_weights(self) -> bool:
        """True if the retrievers' weights are found on development data."""
        return self.fusion == "weighted" and self.development is not None and not self.weights

    @property
    def _finders(self) -> tuple[Retriever, ...]:
        return (*([self.retriever] if self.retriever is not None else []), *self.retrievers)

    def check(self, context: Preflight) -> Iterator[Problem]:
        for fault, option in (
            *self._check_parts(),
            *self._check_fusion(),
            *self._check_share(),
            *self._check_kinds(),
        ):
            yield context.problem(fault, option)
        stack = self.describes()
        for member in stack.models:
            option = "reranker" if member is stack.reranker else "retrievers"
            for fault in _check_folder(member, context):
                yield context.problem(f"{member.model}: {fault}", option)
        if self.development is not None:
            yield from self._check_development(self.development, stack, context)
        parents = tuple(member.model.text for member in stack.models)
        context.expect(Expected(Artifact(kind="search", parents=parents), stack=stack))

    def _check_development(
        self, evaluator: Evaluator, stack: SearchStack, context: Preflight
    ) -> Iterator[Problem]:
        """Yield problems of the evaluator by which weights are found."""
        yield from evaluator.check(context)
        for fault in evaluator.check_stack(stack, context):
            yield context.problem(f"development: {fault}", "development")
        tested = [task.name for task in evaluator.preview(context) or () if task.split == "test"]
        if tested:
            yield context.warning(
                f"weights are found on the test half of {', '.join(tested)}, so scores on it are too good; "
                "take `split: dev`",
                "development",
            )

    def _check_parts(self) -> Iterator[tuple[str, str]]:
        """Yield (problem, option) if models are missing, or named in two ways."""
        if not self._finders:
            yield "a search needs a retriever", "retriever"
        if self.retriever is not None and self.retrievers:
            yield "give one retriever, or several as `retrievers`", "retrievers"
        if len(self._finders) == 1 and self.reranker is None:
            yield "one retriever alone is no stack; add a reranker, or score the model itself", ""

    def _check_fusion(self) -> Iterator[tuple[str, str]]:
        """Yield (problem, option) if options of the fusion contradict each other."""
        is_weighted, are_found = self.fusion == "weighted", self.development is not None
        count = len(self._finders)
        if is_weighted and not are_found and len(self.weights) != count:
            yield (
                f"weighted needs a weight for each of {count} retrievers, and there are "
                f"{len(self.weights)}; or give `development`, on which they are found",
                "weights",
            )
        if self.weights and not any(self.weights):
            yield "all weights are 0, so no document is better than another", "weights"
        if self.weights and not is_weighted:
            yield "weights is for `fusion: weighted`", "weights"
        if are_found and not (is_weighted or self.find_share):
            yield "development is for `fusion: weighted` and `find_share`", "development"
        if self.weights and are_found and not self.find_share:
            yield "weights are given, so none are found; leave one of the two out", "development"
        if self._finds_weights and not 1 < count <= _MOST_FOUND:
            yield (
                f"weights are found for 2 to {_MOST_FOUND} retrievers, not for {count}",
                "retrievers",
            )

    def _check_share(self) -> Iterator[tuple[str, str]]:
        """Yield (problem, option) if the reranker's share has no effect, or is given and found."""
        option = "find_share" if self.find_share else "reranker_share"
        if self.reranker is None and (self.find_share or self.reranker_share != 1):
            yield f"{option} is for a search with a reranker", option
        if self.find_share and self.reranker_share != 1:
            yield "the reranker's share is given, and found; leave one of the two out", option
        if self.reranker is not None and self.reranker_share == 0:
            yield "a reranker with the share 0 changes nothing; leave it out", option

    def _check_kinds(self) -> Iterator[tuple[str, str]]:
        """Yield (problem, option) for each model whose backbone cannot do its part."""
        for one in self._finders:
            if one.backbone.kind == "pair_score":
                yield (
                    f"{one.model}: {type(one.backbone).__name__} scores pairs and cannot search; name "
                    "it as `reranker`",
                    "retrievers",
                )
        if self.reranker is not None and self.reranker.backbone.kind != "pair_score":
            yield (
                f"{self.reranker.model}: {type(self.reranker.backbone).__name__} embeds single texts, and a "
                "reranker scores pairs; name it as a retriever, or take backbone: cross_encoder",
                "reranker",
            )

    def run(self, workspace: Workspace) -> Artifact:
        stack = self.describes()
        found = None
        if self.development is not None and self._finds_weights:
            trials = [
                replace(stack, reranker=None, weights=weights)
                for weights in _list_weights(len(stack.retrievers))
            ]
            best, found = _find_best(self.development, trials, workspace)
            stack = replace(stack, weights=best.weights)
        if self.development is not None and self.find_share:
            trials = [replace(stack, reranker_share=tenths / 10) for tenths in range(11)]
            best, found = _find_best(self.development, trials, workspace)
            stack = replace(stack, reranker_share=best.reranker_share)
            if best.reranker_share == 0:
                workspace.warn(
                    "the reranker is best left out: on the development data no share of it is better than "
                    "the retrievers alone"
                )
        models = [workspace.model(member.model) for member in stack.models]
        record: dict[str, Any] = {
            "format": 1,
            "models": [
                {
                    "part": "reranker" if member is stack.reranker else "retriever",
                    "model": member.model.text,
                    "fingerprint": model.fingerprint,
                    "backbone": repr(member.backbone),
                }
                for member, model in zip(stack.models, models, strict=True)
            ],
            "depth": stack.depth,
            "fusion": self.fusion,
            "weights": list(stack.weights),
            "k": stack.rank_constant,
            "reranker_share": stack.reranker_share,
            **({"development_score": found} if found is not None else {}),
        }
        text = json.dumps(record, indent=1, ensure_ascii=False)
        (workspace.folder / _FILE).write_text(text + "\n", encoding="utf-8")
        parents = tuple(model.fingerprint for model in models)
        return Artifact(kind="search", parents=parents, details={"stack": record})


def _find_best(
    evaluator: Evaluator, trials: Sequence[SearchStack], workspace: Workspace
) -> tuple[SearchStack, float]:
    """Return the search of the best mean score, and the score; of equal ones, that of the most even weights.

    Raises:
        DataError: if there is nothing to score on.
    """
    tasks = evaluator.plan(workspace)
    if not tasks:
        raise DataError("development: has no tasks to find weights on")
    means = []
    for number, tried in enumerate(trials, 1):
        varied = f"{tried.weights} {tried.reranker_share}"
        model = Model("fusion", workspace.work, varied, stack=tried)
        with workspace.part("weights", number, len(trials), varied):
            scores = [score.score for score in evaluator.evaluate(model, tasks, workspace)]
        means.append(sum(scores) / len(scores))
    best = max(
        range(len(trials)),
        key=lambda trial: (
            means[trial],
            -max(trials[trial].weights, default=0.0),
            -abs(trials[trial].reranker_share - 0.5),
        ),
    )
    return trials[best], means[best]


def _list_weights(count: int) -> list[tuple[float, ...]]:
    """Return the shares of models that sum to 1, in steps of 0.1 for two models, of 0.2 for more."""
    steps = 10 if count == 2 else 5
    grid = itertools.product(range(steps + 1), repeat=count)
    return [tuple(share / steps for share in shares) for shares in grid if sum(shares) == steps]


def _check_folder(member: StackedModel, context: Preflight) -> Iterator[str]:
    """Yield a problem if a model that exists already cannot be loaded by its backbone as it is."""
    folder = context.whole_model(member.model)
    if folder is None:
        return
    facts = member.backbone.describe(folder)
    yield from facts.problems
    if facts.untrained:
        name = type(member.backbone).__name__
        yield (
            f"has no {', '.join(facts.untrained)}, which {name} would begin with random weights; train it "
            "with this backbone first, or take the backbone of its own kind"
        )

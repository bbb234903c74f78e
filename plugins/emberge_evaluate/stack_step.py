"""The `stack` step: a whole search, of retrievers and a reranker, that is scored like a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from emberge import (
    Artifact,
    ArtifactKind,
    Backbone,
    Count,
    Expected,
    ModelRef,
    NonNegative,
    Preflight,
    Problem,
    Step,
    Workspace,
    component,
)
from emberge.contracts import SearchStack, StackedModel

_FILE = "stack.json"


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

    Scores of pairs are kept in OUT's store, so that stacks of several depths compute each of them once.

    Example:
        search:
          stack:
            retriever: ./boom
            reranker: ./reranker
            depth: 50
    """

    produces: ClassVar[ArtifactKind] = "search"

    retriever: Retriever | None = None
    retrievers: tuple[Retriever, ...] = ()
    """Several retrievers, in place of one."""
    reranker: Reranker | None = None
    depth: Count = 100
    """Number of documents of each query that the reranker orders."""
    fusion: Literal["reciprocal_rank", "weighted"] = "reciprocal_rank"
    """Fusion of the lists of several retrievers."""
    weights: tuple[NonNegative, ...] = ()
    """Weight of each retriever's scores for `weighted`, in their order."""
    k: Count = 60
    """Constant of `reciprocal_rank`."""

    def describes(self) -> SearchStack:
        reranker = self.reranker
        return SearchStack(
            tuple(StackedModel(one.model, one.backbone) for one in self._finders),
            None if reranker is None else StackedModel(reranker.model, reranker.backbone),
            self.depth,
            self.weights,
            self.k,
        )

    @property
    def _finders(self) -> tuple[Retriever, ...]:
        return (*([self.retriever] if self.retriever is not None else []), *self.retrievers)

    def check(self, context: Preflight) -> Iterator[Problem]:
        for fault, option in (*self._check_parts(), *self._check_fusion(), *self._check_kinds()):
            yield context.problem(fault, option)
        stack = self.describes()
        for member in stack.models:
            option = "reranker" if member is stack.reranker else "retrievers"
            for fault in _check_folder(member, context):
                yield context.problem(f"{member.model}: {fault}", option)
        parents = tuple(member.model.text for member in stack.models)
        context.expect(Expected(Artifact(kind="search", parents=parents), stack=stack))

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
        is_weighted = self.fusion == "weighted"
        if is_weighted and len(self.weights) != len(self._finders):
            yield (
                f"weighted needs a weight for each of {len(self._finders)} retrievers, and there are "
                f"{len(self.weights)}",
                "weights",
            )
        if is_weighted and self.weights and not any(self.weights):
            yield "all weights are 0, so no document is better than another", "weights"
        if self.weights and not is_weighted:
            yield "weights are for `fusion: weighted`", "weights"

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
        }
        text = json.dumps(record, indent=1, ensure_ascii=False)
        (workspace.folder / _FILE).write_text(text + "\n", encoding="utf-8")
        parents = tuple(model.fingerprint for model in models)
        return Artifact(kind="search", parents=parents, details={"stack": record})


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

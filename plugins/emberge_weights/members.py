"""Models of a search as inputs of a merge; problems of them, and their vectors of every set."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from emberge import Backbone, CheckpointError, Model, PerTensor, Stage, Workspace
from emberge.merging import MergeInput, MergeRequest, plan_merge

from emberge_weights.judged_sets import JudgedSet

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class VectorRows(Protocol):
    """Vectors on disk or in memory: float32 [n, d], indexed by row number."""

    def __len__(self) -> int: ...

    def __getitem__(self, row_numbers: Any) -> NDArray[np.float32]: ...


@dataclass(frozen=True, eq=False)
class SetVectors:
    """Vectors of a set's queries and documents by one member."""

    queries: VectorRows
    documents: VectorRows


MemberVectors = Sequence[Sequence[SetVectors]]
"""Each member's vectors of every set, [members][sets]."""


def find_prompt(prompts: Mapping[str, str], judged_set: JudgedSet, text_side: str) -> str:
    """Return a model's own prompt for texts that are a `query` or a `document` of a set; "" for pairs."""
    if judged_set.gold:
        return ""
    names = [text_side, "passage"] if text_side == "document" else [text_side]
    return next((prompts[name] for name in names if name in prompts), "")


def remove_normalisation(backbone: Backbone) -> Backbone:
    """Return the backbone without the final scaling of embeddings to length one.

    A merge averages weights, which act before that scaling. So a member influences the merge's embedding in
    proportion to the length of its unscaled embedding.
    """
    if any(option.name == "normalize" for option in dataclasses.fields(backbone)):
        return dataclasses.replace(backbone, **{"normalize": False})
    return backbone


def build_member_inputs(models: Sequence[Model], weights: Sequence[float]) -> list[MergeInput]:
    """Return the models with a weight other than 0, as inputs of a merge."""
    return [
        MergeInput(
            f"{model.name} ({number})",
            model.folder,
            weight=PerTensor(weight),
            fingerprint=model.fingerprint,
            adapter=model.adapter,
        )
        for number, (model, weight) in enumerate(zip(models, weights, strict=True), 1)
        if weight != 0
    ]


def describe_member_problems(inputs: Sequence[MergeInput], strategy: Stage) -> Iterator[str]:
    """Yield reasons why members cannot be merged, or why their ensemble does not foretell their merge."""
    plan = plan_merge(MergeRequest(inputs=tuple(inputs), strategy=(strategy,)))
    for problem in plan.problems:
        yield f"members have to merge without a template, so take models that agree: {problem}"
    if plan.token_plan is not None:
        yield (
            "the models' tokenizers differ, so that a text is other tokens to each and their ensemble "
            "foretells no merge; take models of one tokenizer"
        )


def require_members(models: Sequence[Model], strategy: Stage) -> None:
    """Require members, whose folders all exist, that can be merged and whose ensemble foretells the merge.

    Raises:
        CheckpointError: if there are fewer than two members, if a member occurs twice, or if models do not
            fit each other.
    """
    if len(models) < 2:
        raise CheckpointError("weights need two models, or one and its base")
    name_by_content: dict[str, str] = {}
    for model in models:
        if model.fingerprint in name_by_content:
            raise CheckpointError(
                f"'{name_by_content[model.fingerprint]}' and '{model.name}' are the same model; name it once"
            )
        name_by_content[model.fingerprint] = model.name
    for problem in describe_member_problems(
        build_member_inputs(models, [1.0] * len(models)), strategy
    ):
        raise CheckpointError(problem)


@dataclass(frozen=True, kw_only=True)
class SetEmbedder:
    """Embedder of sets, one model at a time."""

    sets: Sequence[JudgedSet]
    backbone: Backbone
    max_length: int | None
    workspace: Workspace

    def embed_member(self, model: Model) -> list[SetVectors]:
        """Return one member's vectors of every set, from the embedding store that steps share."""
        work = self.workspace
        with work.whole_model(model) as folder:
            return self._embed_sets(folder, model.fingerprint, model.name, work.store)

    def embed_merged(self, folder: Path, key: str, name: str) -> list[SetVectors]:
        """Return a merged model's vectors of every set, which are stored until the step is done."""
        return self._embed_sets(folder, key, name, self.workspace.work / "vectors")

    def _embed_sets(
        self, folder: Path, key: str, name: str, store_folder: Path
    ) -> list[SetVectors]:
        from emberge_encoder import EmbeddingStore

        backbone = remove_normalisation(self.backbone)
        encoder = backbone.load(folder, device=self.workspace.machine.device, dtype="float32")
        store = EmbeddingStore(
            store_folder,
            encoder,
            model_key=f"{key} {backbone!r}",
            model_name=name,
            progress=self.workspace.progress,
        )

        def embed(judged_set: JudgedSet, texts: Sequence[str], text_side: str) -> VectorRows:
            prompt = find_prompt(encoder.prompts, judged_set, text_side)
            return store.embed(texts, prompt=prompt, max_length=self.max_length)

        vectors_by_set = []
        for number, judged_set in enumerate(self.sets, 1):
            with self.workspace.part("set", number, len(self.sets), judged_set.name):
                queries = embed(judged_set, judged_set.queries, "query")
                documents = embed(judged_set, judged_set.documents, "document")
            vectors_by_set.append(SetVectors(queries, documents))
        return vectors_by_set

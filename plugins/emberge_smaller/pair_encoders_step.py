"""The `pair_encoders` step: one folder that embeds queries by one model and documents by another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge import (
    Artifact,
    CheckpointError,
    EmbergeError,
    Expected,
    Model,
    ModelRef,
    Preflight,
    Problem,
    Step,
    Workspace,
)
from emberge.contracts import ParameterCount

_OTHER_SPACE = (
    "learned only how similar texts are (a loss of scores), so its vectors are in a space without "
    "documents; distil it with loss: embedding_distillation"
)


@dataclass(frozen=True, kw_only=True)
class PairEncoders(Step):
    """Pair a model for queries with a model for documents in one folder: an asymmetric dual encoder.

    The result is a stock Router of sentence-transformers. Its `encode_query` gives the vectors of `queries`,
    its `encode_document` and `encode` those of `documents`, each with its own tokenizer, pooling, linear
    layers and normalisation. So a small student answers queries at once, while documents are embedded once by
    its teacher (LEAF: Vujanic and Rueckstiess, 2025, arXiv:2509.12539). Weights are copied in pieces, and the
    folder loads without remote code.

    The prompts for queries are the first model's, all others the second one's. The similarity is that of the
    second model, as the index is its own.

    Both models must give vectors of one space: train `queries` by a step `distil` with
    `embedding_distillation` and the model of `documents` as the teacher. Sizes of vectors that differ are
    refused, and so are students that learned only scores. A student of another teacher gets a warning, as
    that teacher may share the space. Of other models the space is not known; score the pair.

    Example:
        served:
          pair_encoders: {queries: ./small, documents: ./boom}
    """

    produces = "model"
    loads = ("torch",)

    queries: ModelRef
    """The model that embeds queries, such as a small student."""
    documents: ModelRef
    """The model that embeds documents, such as the student's teacher."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        folders: dict[str, Path] = {}
        problems: list[Problem] = []
        for option, reference in self._list_sides():
            if reference.adapter is not None:
                problems.append(context.problem(_refuse_adapter(reference.text), option))
                continue
            folder = context.model(reference)
            if folder is not None:
                folders[option] = folder
        problems += [
            context.problem(message, option)
            for option, message in _find_problems(folders, context.plugins)
        ]
        expected = context.expected(self.queries)
        if expected is not None and _learned_scores_alone(expected.artifact.details):
            problems.append(context.problem(f"{self.queries}: {_OTHER_SPACE}", "queries"))
        yield from problems
        artifact = Artifact(kind="model", parents=(self.documents.text, self.queries.text))
        parameters = None if problems else _count_parameters(folders)
        context.expect(Expected(artifact, parameters=parameters))

    def _list_sides(self) -> tuple[tuple[str, ModelRef], ...]:
        return ("queries", self.queries), ("documents", self.documents)

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.model_folder import write_router

        models = {option: workspace.model(reference) for option, reference in self._list_sides()}
        _require_one_space(models["queries"], models["documents"], workspace)
        for model in models.values():
            if model.adapter is not None:
                raise CheckpointError(_refuse_adapter(model.name))
        folders = {option: model.folder for option, model in models.items()}
        for _, message in _find_problems(folders, workspace.plugins):
            raise CheckpointError(message)
        copies = {option: _copy_whole(model, option, workspace) for option, model in models.items()}
        write_router(workspace.folder, copies["queries"], copies["documents"])
        return Artifact(
            kind="model",
            parents=(self.documents.text, self.queries.text),
            details={
                "made_by": "pairing an encoder of queries with",
                "routes": {
                    "query": {
                        "model": models["queries"].name,
                        "fingerprint": models["queries"].fingerprint,
                    },
                    "document": {
                        "model": models["documents"].name,
                        "fingerprint": models["documents"].fingerprint,
                    },
                },
            },
        )


def _refuse_adapter(name: str) -> str:
    return f"{name}: is an adapter, and a route is a whole model; merge it into its base first"


def _find_problems(folders: Mapping[str, Path], plugins: Any) -> Iterator[tuple[str, str]]:
    """Yield the option and the message of each reason why models cannot be paired, by their folders."""
    from emberge.model_folder import require_routable

    backbone = plugins.find("text_encoder", "backbone").type()
    sizes = {}
    for option, folder in folders.items():
        try:
            require_routable(folder)
        except EmbergeError as error:
            yield option, str(error)
            continue
        facts = backbone.describe(folder)
        yield from ((option, message) for message in facts.problems)
        sizes[option] = facts.dimension
    known_sizes = {size for size in sizes.values() if size is not None}
    if len(known_sizes) > 1:
        yield (
            "queries",
            f"{folders['queries']}: has vectors of {sizes['queries']:,} numbers and "
            f"{folders['documents']} of {sizes['documents']:,}, so queries cannot search the documents; "
            f"distil a student with backbone: {{text_encoder: {{dense: {sizes['documents']}}}}}",
        )


def _count_parameters(folders: Mapping[str, Path]) -> ParameterCount | None:
    """Return the parameters of both models together; None if a model is not known yet."""
    from emberge.model_folder import Checkpoint, count_parameters

    if len(folders) < 2:
        return None
    checkpoints = [Checkpoint(folder) for folder in folders.values()]
    if not all(checkpoint.has_weights for checkpoint in checkpoints):
        return None
    counts = [count_parameters(checkpoint) for checkpoint in checkpoints]
    return ParameterCount(
        total=sum(count.total for count in counts),
        active=sum(count.active for count in counts),
        computed=sum(count.computed for count in counts),
    )


def _learned_scores_alone(details: Mapping[str, Any]) -> bool:
    """Return whether the details of a student are of one that learned no vectors of its teacher."""
    distilled = details.get("distilled")
    return isinstance(distilled, Mapping) and distilled.get("learned") == "scores"


def _require_one_space(queries: Model, documents: Model, workspace: Workspace) -> None:
    """Warn of a student of another teacher; refuse one that is known to be of another space.

    Raises:
        CheckpointError: if the student learned only scores.
    """
    if _learned_scores_alone(queries.details):
        raise CheckpointError(f"{queries.name}: {_OTHER_SPACE}")
    distilled = queries.details.get("distilled")
    space = distilled.get("space") if isinstance(distilled, Mapping) else None
    if space not in (None, documents.fingerprint):
        workspace.warn(
            f"{queries.name} learned the vectors of another model than {documents.name}; if that model does "
            "not share its space, queries find nothing: score the pair"
        )


def _copy_whole(model: Model, option: str, workspace: Workspace) -> Path:
    """Return a complete copy of a model in the step's work folder, written once, in pieces."""
    from emberge.files import fill_once
    from emberge.merging import build_result
    from emberge.model_folder import Checkpoint

    checkpoint = Checkpoint(model.folder)

    def copy(side: Path) -> None:
        build_result(
            workspace,
            checkpoint.specs.values(),
            template=checkpoint,
            key=[model.fingerprint],
            out=side,
        )

    return fill_once(workspace.work / option, copy)

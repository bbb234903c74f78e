"""Indexes of other models in a recipe: their faults, and all that decides their vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from emberge import Backbone, Preflight, TaskInfo, Workspace
from emberge.contracts import KeptIndex

# Ends of the kinds of task that have documents, which an index is of.
_SEARCHED = ("retrieval", "reranking")


def index_faults(
    indexes: Sequence[KeptIndex], backbone: Backbone | None, context: Preflight
) -> Iterator[str]:
    """Yield what is wrong with indexes before a run: names, numbers, models that cannot embed documents."""
    for label, count in Counter(index.label for index in indexes).items():
        if count > 1:
            yield f"{count} indexes are called '{label}'; give each a `name`"
    for index in indexes:
        if index.anew < 0:
            yield f"anew: {index.anew} documents cannot be embedded anew; give a number from 0 on"
        if context.adapter(index.model) is not None:
            yield f"{index.model}: an index is of a whole model, not of an adapter; merge it first"
        folder = context.model(index.model)
        for problem in (
            backbone.describe(folder).problems if backbone and folder is not None else ()
        ):
            yield f"{index.model}: {problem}"


def unsearched(tasks: Sequence[TaskInfo]) -> Iterator[str]:
    """Yield the problem with each task that has no documents, once."""
    for name, kind in {task.plain_name: task.kind for task in tasks}.items():
        if not kind.endswith(_SEARCHED):
            yield (
                f"'{name}' is {kind}, which has no documents that an index could be of; score it by an "
                "evaluation of its own"
            )


def index_widths(
    indexes: Sequence[KeptIndex], backbone: Backbone, checkpoint: Path, context: Preflight
) -> Iterator[str]:
    """Yield the indexes that a model cannot search, because their vectors have another size than its own."""
    wanted = backbone.describe(checkpoint).dimension
    for index in indexes:
        folder = None if index.translations else context.model(index.model)
        width = None if folder is None else backbone.describe(folder).dimension
        if None not in (width, wanted) and width != wanted:
            yield wrong_width(index.label, width, wanted)


def wrong_width(label: str, width: int | None, wanted: int | None) -> str:
    """Return the problem with an index whose vectors have another size than a model's queries."""
    return (
        f"the index '{label}' has vectors of {width} numbers and the queries have {wanted}; give "
        "documents_of `translations` that lead from the one space to the other"
    )


def index_contents(indexes: Sequence[KeptIndex], workspace: Workspace) -> list[str]:
    """Return of each index what decides its vectors: fingerprints of its model and its translations."""
    from emberge.encoding import read_space_map

    return [
        " ".join(
            [
                workspace.model(index.model).fingerprint,
                *(read_space_map(workspace.data(one)).fingerprint for one in index.translations),
            ]
        )
        for index in indexes
    ]

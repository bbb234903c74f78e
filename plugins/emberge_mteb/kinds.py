"""Tasks that models of another kind of embedding than one vector a text can be scored on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from emberge import Backbone, TaskInfo
from emberge.contracts import describe_kinds
from emberge.wording import join_some


def find_kind_problems(
    backbone: Backbone, tasks: Sequence[TaskInfo], *, has_sizes: bool
) -> Iterator[str]:
    """Yield reasons why models of a backbone's kind cannot be scored on some of the tasks.

    `has_sizes` is whether embeddings are cut to several sizes.
    """
    kind = backbone.kind
    if kind == "vector":
        return
    kind_of_task = {task.name: task.kind for task in tasks}
    searched = [name for name, task in kind_of_task.items() if task.endswith("retrieval")]
    # Texts of other tasks are neither queries nor documents.
    others = join_some(
        [n for n, task in kind_of_task.items() if not task.endswith(("retrieval", "reranking"))]
    )
    if kind == "pair_score" and searched:
        yield (
            f"is a reranker, which scores pairs of texts and cannot search (in {join_some(searched)}); score "
            "it on reranking tasks"
        )
    if kind == "pair_score" and others:
        yield f"is a reranker, and no query comes with candidates in {others}; take reranking tasks"
    if kind in ("sparse", "token_vectors") and others:
        yield (
            f"gives {describe_kinds({kind})}, and one vector a text is needed for {others}; take retrieval "
            "and reranking tasks"
        )
    if has_sizes:
        yield (
            f"dims is about vectors of whole texts, and models of {type(backbone).__name__} give none; leave "
            "it out"
        )

"""Measurement of what models cost to run: time for one query, and texts per second in batches."""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from emberge import Backbone, Count, DataError, Evaluator, Model, TaskInfo, Workspace
from emberge.contracts import Side
from emberge.devices import name_device
from emberge.evaluating import EncodingCost, read_costs, time_call, write_costs
from emberge.files import make_folder

from emberge_evaluate.score_model import choose_evaluators

if TYPE_CHECKING:
    from numpy.typing import NDArray

Plans = Sequence[tuple[Evaluator, Sequence[TaskInfo]]]
# Texts that a model embeds before its first measurement, which would include its start.
_WARM_UP = 16
_Embed: TypeAlias = "Callable[[Sequence[str], Side], Sequence[NDArray[Any]]]"
_Rerank: TypeAlias = "Callable[[str, Sequence[str]], NDArray[Any]]"
_MEASURED = ("milliseconds", "cpu_milliseconds", "texts_per_second", "texts_per_cpu_second")


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """Measurement of the time that a model takes for texts of the evaluation's data.

    The evaluator embeds the texts, tokenizer included, as for its scores. In each round every model is loaded
    and timed, one after the other, so that a machine that becomes slower is slower for all of them; the
    figures are medians of the rounds. The bytes of a document in an index are a mean over the documents. The
    figures are kept by models, texts and machine: another machine, or another number of threads, measures
    again.

    A whole search (`stack`) is timed as a user waits for it: its retrievers embed the query one after the
    other, and its reranker reads the query with `depth` documents; the search of an index is left out. Its
    texts per second and bytes are those of all its retrievers together.
    """

    queries: Count = 64
    """Number of queries, embedded one at a time."""
    texts: Count = 256
    """Number of documents, embedded in batches."""
    rounds: Count = 5


def can_be_timed(evaluator: Evaluator) -> bool:
    """Return whether an evaluator says how it embeds texts."""
    return type(evaluator).load_embedder is not Evaluator.load_embedder


def measure_costs(
    options: CostOptions,
    models: Iterable[Model],
    plans: Plans,
    workspace: Workspace,
    backbones: Mapping[str, Backbone] = MappingProxyType({}),
) -> dict[str, EncodingCost]:
    """Return the models' costs by fingerprint, on the workspace's first device.

    `backbones` are those of models that are not loaded by the evaluator's own, by fingerprint.

    Raises:
        DataError: if there are no texts.
    """
    import torch

    evaluator, tasks = next(plan for plan in plans if can_be_timed(plan[0]))
    queries, texts = _choose_texts(evaluator, tasks, options, workspace)
    by_content = {model.fingerprint: model for model in models}
    machine, threads = name_device(workspace.machine.device), torch.get_num_threads()
    decisive = (
        *(sorted(by_content), queries, texts, options.rounds, evaluator, machine, threads),
        *(sorted((content, repr(backbone)) for content, backbone in backbones.items())),
        *map(version, ("emberge", "torch")),
    )
    folder = workspace.store / "costs" / sha256(repr(decisive).encode()).hexdigest()[:32]
    with contextlib.suppress(DataError):  # a damaged file: measure again
        if kept := read_costs(folder):
            return kept
    rounds: dict[str, list[EncodingCost]] = {content: [] for content in by_content}
    for number in range(options.rounds):
        for content, model in by_content.items():
            note = f"timing {model.name}, round {number + 1} of {options.rounds}"
            workspace.progress(0, 0, note=note)
            (loader,) = choose_evaluators((evaluator,), backbones.get(content))
            cost = _measure_round(loader, model, queries, texts, workspace)
            rounds[content].append(cost)
    costs = {content: _take_medians(measured) for content, measured in rounds.items()}
    make_folder(folder)
    write_costs(folder, costs)
    return costs


def _measure_round(
    evaluator: Evaluator,
    model: Model,
    queries: Sequence[str],
    texts: Sequence[str],
    workspace: Workspace,
) -> EncodingCost:
    """Return the cost of a model's median query, and of all texts."""
    import torch

    with contextlib.ExitStack() as folders:
        embedders, rerank = _load_parts(evaluator, model, workspace, folders)
        depth = 0 if model.stack is None else model.stack.depth
        candidates = list(itertools.islice(itertools.cycle(texts), depth))

        def ask(query: str) -> None:
            for embed in embedders:
                embed([query], "query")
            if rerank is not None:
                rerank(query, candidates)

        def index(documents: Sequence[str]) -> list[Any]:
            return [[*embed(documents, "document")] for embed in embedders]

        ask(queries[0])
        index(texts[:_WARM_UP])
        singles = [time_call(partial(ask, query)) for query in queries]
        rows: list[Any] = []
        batch = time_call(lambda: rows.extend(index(texts)))
    return EncodingCost(
        dimension=max(row.shape[-1] for one in rows for row in one),
        index_bytes=float(f"{sum(row.nbytes for one in rows for row in one) / len(texts):.4g}"),
        milliseconds=1000 * statistics.median(one.wall for one in singles),
        cpu_milliseconds=1000 * statistics.median(one.cpu for one in singles),
        texts_per_second=len(texts) / batch.wall,
        texts_per_cpu_second=len(texts) / batch.cpu,
        machine=name_device(workspace.machine.device),
        threads=torch.get_num_threads(),
        queries=len(queries),
        texts=len(texts),
        rounds=1,
    )


def _load_parts(
    evaluator: Evaluator, model: Model, workspace: Workspace, folders: contextlib.ExitStack
) -> tuple[list[_Embed], _Rerank | None]:
    """Load a model, or those of a whole search: functions that embed, and one that scores pairs.

    Raises:
        DataError: if the evaluator embeds no texts of a model, or scores no pairs by a reranker.
    """

    def open_folder(part: Model) -> Model:
        folder = folders.enter_context(workspace.whole_model(part))
        return replace(part, folder=folder, adapter=None)

    def load_embedder(loader: Evaluator, part: Model) -> _Embed:
        embed = loader.load_embedder(part, workspace)
        if embed is None:
            raise DataError(
                f"{type(loader).__name__} embeds no texts of {part.name}; leave out cost"
            )
        return embed

    if model.stack is None:
        return [load_embedder(evaluator, open_folder(model))], None
    loaders = [
        (
            choose_evaluators((evaluator,), part.backbone)[0],
            open_folder(workspace.model(part.model)),
        )
        for part in model.stack.models
    ]
    rerank = None
    if model.stack.reranker is not None:
        loader, reranker = loaders.pop()
        rerank = loader.load_pair_scorer(reranker, workspace)
        if rerank is None:
            raise DataError(
                f"{type(loader).__name__} scores no pairs by {reranker.name}; leave out cost"
            )
    return [load_embedder(loader, part) for loader, part in loaders], rerank


def _take_medians(rounds: Sequence[EncodingCost]) -> EncodingCost:
    """Return the medians of a model's rounds, to four digits: a measurement has no more."""
    medians: dict[str, Any] = {
        name: float(f"{statistics.median(getattr(one, name) for one in rounds):.4g}")
        for name in _MEASURED
    }
    return replace(rounds[0], rounds=len(rounds), **medians)


def _choose_texts(
    evaluator: Evaluator, tasks: Sequence[TaskInfo], options: CostOptions, workspace: Workspace
) -> tuple[list[str], list[str]]:
    """Return queries and documents of the tasks, the same in each run: those with the lowest hashes.

    Tasks without documents, such as pairs of sentences, give both.
    """
    most = max(options.queries, options.texts)
    chosen: dict[Side, dict[bytes, str]] = {"query": {}, "document": {}}
    for side, text in _read_texts(evaluator, tasks, workspace):
        chosen[side][sha256(text.encode("utf-8", "surrogatepass")).digest()] = text
        if len(chosen[side]) >= 2 * most:
            chosen[side] = dict(sorted(chosen[side].items())[:most])
    queries, documents = (
        [text for _, text in sorted(chosen[side].items())] for side in ("query", "document")
    )
    if not (queries or documents):
        raise DataError("cost: the evaluation has no texts to time; leave it out")
    return (queries or documents)[: options.queries], (documents or queries)[: options.texts]


def _read_texts(
    evaluator: Evaluator, tasks: Sequence[TaskInfo], workspace: Workspace
) -> Iterator[tuple[Side, str]]:
    for task in {task.plain_name: task for task in tasks}.values():
        yield from evaluator.texts(task, workspace) or ()

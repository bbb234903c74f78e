"""Measurement of what models cost to run: time for one query, and texts per second in batches."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

from emberge import Backbone, Count, DataError, Evaluator, Model, TaskInfo, Workspace
from emberge.contracts import Side
from emberge.devices import name_device
from emberge.evaluating import EncodingCost, read_costs, time_call, write_costs
from emberge.files import make_folder

from emberge_evaluate.score_model import choose_evaluators

Plans = Sequence[tuple[Evaluator, Sequence[TaskInfo]]]
# Texts that a model embeds before its first measurement, which would include its start.
_WARM_UP = 16
_MEASURED = ("milliseconds", "cpu_milliseconds", "texts_per_second", "texts_per_cpu_second")


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """Measurement of the time that a model takes for texts of the evaluation's data.

    The evaluator embeds the texts, tokenizer included, as for its scores. In each round every model is loaded
    and timed, one after the other, so that a machine that becomes slower is slower for all of them; the
    figures are medians of the rounds. The bytes of a document in an index are a mean over the documents. The
    figures are kept by models, texts and machine: another machine, or another number of threads, measures
    again. A whole search (`stack`) is not timed, only the models that are scored alone.
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

    if workspace.rehearsal is not None:
        rows = workspace.rehearsal.rows
        options = CostOptions(
            queries=min(options.queries, rows), texts=min(options.texts, rows), rounds=1
        )
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

    with workspace.whole_model(model) as folder:
        whole_model = replace(model, folder=folder, adapter=None)
        embed = evaluator.load_embedder(whole_model, workspace)
        if embed is None:
            raise DataError(
                f"{type(evaluator).__name__} embeds no texts of {model.name}; leave out cost"
            )
        embed(queries[:1], "query")
        embed(texts[:_WARM_UP], "document")
        singles = [time_call(partial(embed, [query], "query")) for query in queries]
        rows: list[Any] = []
        batch = time_call(lambda: rows.extend(embed(texts, "document")))
    return EncodingCost(
        dimension=max(row.shape[-1] for row in rows),
        index_bytes=float(f"{sum(row.nbytes for row in rows) / len(rows):.4g}"),
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

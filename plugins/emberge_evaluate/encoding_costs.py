"""Measurement of what models cost to run: time for one query, and texts per second in batches."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.metadata import version
from typing import TYPE_CHECKING

from emberge import Count, DataError, Evaluator, Model, TaskInfo, Workspace
from emberge.contracts import Side
from emberge.devices import name_device
from emberge.evaluating import EncodingCost, read_costs, time_call, write_costs
from emberge.files import make_folder

if TYPE_CHECKING:
    from emberge.evaluating.timing import Elapsed

Plans = Sequence[tuple[Evaluator, Sequence[TaskInfo]]]
# Texts that a model embeds before its first measurement, which would include its start.
_WARM_UP = 16


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """Measurement of the time that a model takes for texts of the evaluation's data.

    The evaluator embeds the texts, tokenizer included, as for its scores. In each round every model is loaded
    and timed, one after the other, so that a machine that becomes slower is slower for all of them; the
    figures are medians of the rounds. They are kept by models, texts and machine: another machine, or another
    number of threads, measures again.
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
    options: CostOptions, models: Iterable[Model], plans: Plans, workspace: Workspace
) -> dict[str, EncodingCost]:
    """Return the models' costs by fingerprint, on the workspace's first device.

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
        *map(version, ("emberge", "torch")),
    )
    folder = workspace.store / "costs" / sha256(repr(decisive).encode()).hexdigest()[:32]
    if kept := read_costs(folder):
        return kept
    rounds: dict[str, list[_Round]] = {content: [] for content in by_content}
    for number in range(options.rounds):
        for content, model in by_content.items():
            note = f"timing {model.name}, round {number + 1} of {options.rounds}"
            workspace.progress(0, 0, note=note)
            rounds[content].append(_measure_round(evaluator, model, queries, texts, workspace))
    costs = {
        content: EncodingCost(
            dimension=measured[0].dimension,
            milliseconds=_round_off(1000 * _median(each.query.wall for each in measured)),
            cpu_milliseconds=_round_off(1000 * _median(each.query.cpu for each in measured)),
            texts_per_second=_round_off(len(texts) / _median(each.batch.wall for each in measured)),
            texts_per_cpu_second=_round_off(
                len(texts) / _median(each.batch.cpu for each in measured)
            ),
            machine=machine,
            threads=threads,
            queries=len(queries),
            texts=len(texts),
            rounds=options.rounds,
        )
        for content, measured in rounds.items()
    }
    make_folder(folder)
    write_costs(folder, costs)
    return costs


@dataclass(frozen=True, slots=True)
class _Round:
    """Measurement of one model in one round: its median query, and all documents."""

    query: Elapsed
    batch: Elapsed
    dimension: int


def _measure_round(
    evaluator: Evaluator,
    model: Model,
    queries: Sequence[str],
    texts: Sequence[str],
    workspace: Workspace,
) -> _Round:
    from emberge.evaluating.timing import Elapsed

    with workspace.whole_model(model) as folder:
        whole_model = replace(model, folder=folder, adapter=None)
        embed = evaluator.load_embedder(whole_model, workspace)
        if embed is None:
            raise DataError(
                f"{type(evaluator).__name__} embeds no texts of {model.name}; leave out cost"
            )
        embed(queries[:1], "query")
        rows = embed(texts[:_WARM_UP], "document")
        singles = [time_call(lambda query=query: embed([query], "query")) for query in queries]
        batch = time_call(lambda: embed(texts, "document"))
    wall, cpu = (_median(getattr(one, name) for one in singles) for name in ("wall", "cpu"))
    return _Round(Elapsed(wall, cpu), batch, rows.shape[1])


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


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def _round_off(value: float) -> float:
    """Return four significant digits, as many as a measurement has at best."""
    return float(f"{value:.4g}")

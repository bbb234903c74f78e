"""The data that a step names: its first rows in a check, all of it in a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from emberge.contracts import Preflight, Workspace
from emberge.data.dataset_loading import load_datasets
from emberge.data.dataset_store import StoredDataset
from emberge.data.entry import DataEntry
from emberge.data.first_rows import CheckedData, check_entries


def check_datasets(
    context: Preflight,
    entries: Sequence[DataEntry],
    option: str = "data",
    *,
    limit_rows: int = 100,
    show: bool = True,
) -> CheckedData:
    """Return the first rows of a step's entries, at most `limit_rows` of each, and their problems.

    A problem without a `file:line` of its own has that of `option`. With `show` the first example of each
    dataset becomes a note. Without permission to use the network, hub datasets are `unseen`.
    """
    checked = check_entries(
        entries,
        readers=context.readers,
        resolve=context.data,
        limit_rows=limit_rows,
        network=context.deep,
    )
    for head in checked.heads if show else ():
        context.note(head.title, head.lines)
    problems = (
        dataclasses.replace(problem, where=problem.where or context.where(option))
        for problem in checked.problems
    )
    return dataclasses.replace(checked, problems=tuple(problems))


def step_datasets(
    workspace: Workspace,
    entries: Sequence[DataEntry],
    *,
    limit: int | None = None,
    warn: bool = True,
) -> list[StoredDataset]:
    """Load a step's entries as datasets, kept in the store that all steps of an OUT share.

    `limit` thins each dataset to an even sample of so many rows, a rehearsal to its own number. With `warn`
    decisions that an entry leaves open become warnings of the step.

    Raises:
        DataError: as `load_datasets`.
    """
    rehearsal = workspace.rehearsal
    return load_datasets(
        entries,
        readers=workspace.readers,
        resolve=workspace.data,
        limit=rehearsal.rows if rehearsal else limit,
        store=workspace.store,
        warn=workspace.warn if warn else None,
    )

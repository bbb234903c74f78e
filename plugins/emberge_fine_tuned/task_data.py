"""Data of a task: training, development and test rows, and the classes of its head."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from emberge import DataError, DataRef, Reader, draw_order, make_seed
from emberge.wording import join_some

from emberge_fine_tuned.options import TaskEntry
from emberge_fine_tuned.task_rows import PlainRows, TaskRow, parse_rows, read_plain_rows

# Share and largest number of training rows that are held out to choose settings on.
_DEV_SHARE, _MOST_DEV = 0.1, 2000


@dataclass(frozen=True)
class TaskData:
    """Rows of a task; `classes` are the head's, in the order of its outputs, for heads with classes.

    `test` has the rows of each test set by its name; `key` is a hash of all rows and of the options that read
    them. If one row `has_media`, the texts of every row are the parts of one input.
    """

    entry: TaskEntry
    train: Sequence[TaskRow]
    dev: Sequence[TaskRow]
    test: Mapping[str, Sequence[TaskRow]]
    classes: tuple[str, ...]
    key: str
    has_media: bool = False

    @functools.cached_property
    def number_by_class(self) -> Mapping[str, int]:
        """The number of each class."""
        return {label: number for number, label in enumerate(self.classes)}


def load_task(
    entry: TaskEntry,
    readers: Sequence[Reader],
    resolve: Callable[[DataRef], Path | None],
    store: Path | None = None,
) -> TaskData | None:
    """Return a task's data with all rows checked; None while a step has not yet written some of it.

    Images and clips that rows have as bytes are written to the folder `store`, or a temporary one.

    Raises:
        DataError: for rows that do not fit, and for classes that are not in the training rows.
    """
    plain_sets = _read_sets(entry, readers, resolve, store)
    if plain_sets is None:
        return None
    sets = [
        parse_rows(entry, source, plain_rows)
        for source, plain_rows in zip(entry.sources, plain_sets, strict=True)
    ]
    first_test = 1 + len(entry.dev)
    names = [
        source.given_name or plain_rows.name
        for source, plain_rows in zip(entry.test, plain_sets[first_test:], strict=True)
    ]
    if len(set(names)) < len(names):
        raise DataError(f"task '{entry.name}': two test sets have one name; give each a `name`")
    classes: tuple[str, ...] = ()
    if entry.has_classes:
        classes = entry.labels or _sort_labels(sets[0])
        _require_classes(entry, classes, [rows.place for rows in plain_sets], sets)
    train, dev = sets[0], [row for rows in sets[1:first_test] for row in rows]
    if not dev:
        train, dev = _hold_out(entry, train)
    return TaskData(
        entry=entry,
        train=train,
        dev=dev,
        test=dict(zip(names, sets[first_test:], strict=True)),
        classes=classes,
        key=_hash_data(entry, plain_sets),
        has_media=any(row.has_media for rows in sets for row in rows),
    )


def _read_sets(
    entry: TaskEntry,
    readers: Sequence[Reader],
    resolve: Callable[[DataRef], Path | None],
    store: Path | None,
) -> list[PlainRows] | None:
    """Return the rows of each of the task's sets; None while a step has not yet written some of them."""
    plain_sets: list[PlainRows] = []
    for source in entry.sources:
        try:
            plain_rows = read_plain_rows(
                source.entry, readers=readers, resolve=resolve, store=store
            )
        except ConnectionError as error:
            raise DataError(str(error)) from error
        if plain_rows is None:
            return None
        plain_sets.append(plain_rows)
    return plain_sets


def _hash_data(entry: TaskEntry, plain_sets: Sequence[PlainRows]) -> str:
    """Return a hash of the rows, of the media that they refer to, and of the options that read them."""
    content = [entry.name, repr(replace(entry, columns="mean"))]
    for plain_set in plain_sets:
        content += [plain_set.content_hash, *sorted(plain_set.media.hashes)]
    return hashlib.sha256("\x1f".join(content).encode()).hexdigest()


def _sort_labels(rows: Sequence[TaskRow]) -> tuple[str, ...]:
    """Return the labels in order: numbers by value, other words by letters."""
    labels = _list_labels(rows)
    are_numbers = all(label.isdigit() for label in labels)
    return tuple(sorted(labels, key=int if are_numbers else str))


def _list_labels(rows: Sequence[TaskRow]) -> set[str]:
    return {label for row in rows for label in row.labels}


def _require_classes(
    entry: TaskEntry,
    classes: Sequence[str],
    places: Sequence[str],
    sets: Sequence[Sequence[TaskRow]],
) -> None:
    """Require two classes, and training rows of every class and of every label of another set."""
    learned = _list_labels(sets[0])
    problems = [] if len(classes) > 1 else [f"{places[0]}: one label, and there must be two"]
    for place, labels in zip(places, [set(classes), *map(_list_labels, sets[1:])], strict=True):
        if unlearned := sorted(labels - learned):
            problems.append(
                f"{place}: the label {join_some(unlearned, 5)} is in no row of `train`; add some, or take it "
                "out"
            )
    if problems:
        raise DataError("\n".join(f"task '{entry.name}': {problem}" for problem in problems))


def _hold_out(entry: TaskEntry, rows: Sequence[TaskRow]) -> tuple[list[TaskRow], list[TaskRow]]:
    """Return (training rows, development rows), split by a seed from the task's name."""
    count = min(_MOST_DEV, math.ceil(len(rows) * _DEV_SHARE))
    if count == len(rows):
        raise DataError(
            f"task '{entry.name}': {len(rows)} training rows are too few; give `dev`, or more rows"
        )
    dev_positions = set(draw_order(len(rows), make_seed("dev", entry.name))[:count].tolist())
    parts: tuple[list[TaskRow], list[TaskRow]] = ([], [])
    for position, row in enumerate(rows):
        parts[position in dev_positions].append(row)
    return parts

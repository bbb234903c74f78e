"""Data of a task: training, development and test rows, and their classes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from emberge import DataError, DataRef, MediaFacts, Reader, shuffled, stable_seed
from emberge.data import PlainRows, read_plain_rows
from emberge.wording import join_some

from emberge_evaluate.fine_tuning.task_entry import METRICS, TaskEntry, TaskRowSource
from emberge_evaluate.fine_tuning.task_rows import TaskRow, labels_of, parse_rows

# Most rows that are held out of the training rows to choose settings on.
_MOST_DEV = 2000
_FIRST = 100  # rows of a hub dataset that are looked at before a run
_LABELLED = ("classification", "tokens")


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


def entry_problems(entry: TaskEntry, entries_by_name: Mapping[str, TaskEntry]) -> Iterator[str]:
    """Yield a message for each contradiction of an entry; `entries_by_name` has all tasks."""
    head, start = entry.head, entry.start
    origin = entries_by_name.get(start) if start is not None else None
    fits = METRICS[head]
    wrong = {
        f"head: {head} has no metric {entry.metric}; choose of {join_some(fits)}": (
            entry.scored_by not in fits
        ),
        "`choices` and head: choice belong together; name the columns of the choices": (
            (head == "choice") != bool(entry.choices)
        ),
        "`label` is one column, or several whose mean is learned with head: regression": (
            not entry.label or (len(entry.label) > 1 and head != "regression")
        ),
        "head: span wants the column of the passage; name it as `second`": (
            head == "span" and entry.second is None
        ),
        "there is nothing to test on; give `test`": not entry.test,
        f"dev_share is a share between 0 and 1, not {entry.dev_share:g}": (
            not 0 < entry.dev_share < 1
        ),
        f"head: {head} has no labels to list; take `labels` out": (
            bool(entry.labels) and head not in _LABELLED
        ),
        "give steps or epochs, not both": entry.steps is not None and entry.epochs is not None,
        "columns: test names a column by the `name` of its test set; give each set another one": (
            entry.columns == "test" and len(_distinct_names(entry)) < len(entry.test)
        ),
        f"it starts from '{start}', which is none of the other tasks here": (
            start is not None and (origin is None or origin is entry)
        ),
        f"it starts from '{start}', which starts from another task itself; name that one": (
            origin is not None and origin is not entry and origin.start is not None
        ),
    }
    yield from (f"task '{entry.name}': {fault}" for fault, is_wrong in wrong.items() if is_wrong)


def _distinct_names(entry: TaskEntry) -> set[str]:
    return {name for source in entry.test if (name := source.given_name) is not None}


def check_first_rows(
    entry: TaskEntry, *, readers: Sequence[Reader], resolve: Callable[[DataRef], Path | None]
) -> list[MediaFacts]:
    """Check the first rows of each set without reading further; return the facts of sets with media.

    Raises:
        DataError: for rows that do not fit.
        ConnectionError: when the hub cannot be reached.
    """
    media_facts = []
    for source in (entry.train, *entry.dev, *entry.test):
        plain_rows = read_plain_rows(source.entry, readers=readers, resolve=resolve, first=_FIRST)
        if plain_rows is not None:
            rows = parse_rows(entry, source, plain_rows)
            texts = [
                (number, (row.text, *([] if row.second is None else [row.second])))
                for (number, _), row in zip(plain_rows.rows, rows, strict=True)
            ]
            media_facts.append(plain_rows.media_facts(texts))
    return [facts for facts in media_facts if facts is not None]


def load_task(
    entry: TaskEntry,
    *,
    readers: Sequence[Reader],
    resolve: Callable[[DataRef], Path | None],
    store: Path | None = None,
) -> TaskData | None:
    """Return a task's data with all rows checked; None while a step has not yet written some of it.

    Images and clips that rows have as bytes are written to the folder `store`, or a temporary one.

    Raises:
        DataError: for rows that do not fit, and for classes that some of the sets lack.
    """

    def read(source: TaskRowSource) -> PlainRows | None:
        try:
            return read_plain_rows(source.entry, readers=readers, resolve=resolve, store=store)
        except ConnectionError as error:
            raise DataError(str(error)) from error

    sources = [entry.train, *entry.dev, *entry.test]
    plain_sets = [rows for source in sources if (rows := read(source)) is not None]
    if len(plain_sets) < len(sources):
        return None
    parsed = [
        parse_rows(entry, source, task_set)
        for source, task_set in zip(sources, plain_sets, strict=True)
    ]
    tests = plain_sets[1 + len(entry.dev) :]
    names = _name_tests(entry, tests)
    test = dict(zip(names, parsed[1 + len(entry.dev) :], strict=True))
    train, dev = (
        list(parsed[0]),
        [row for task_set in parsed[1 : 1 + len(entry.dev)] for row in task_set],
    )
    classes: tuple[str, ...] = ()
    if entry.head in _LABELLED:
        classes = entry.labels or _sort_labels(train)
        sets = {plain_sets[0].place: train, **_split_places(entry, plain_sets[1:], parsed[1:])}
        _refuse_lacking(entry, classes, sets)
    if not dev:
        train, dev = _draw_halves(entry, train)
    key = _hash_data(entry, plain_sets)
    has_media = any(row.has_media for task_set in parsed for row in task_set)
    return TaskData(entry, train, dev, test, classes, key, has_media)


def _hash_data(entry: TaskEntry, plain_sets: Sequence[PlainRows]) -> str:
    """Return a hash of the rows, of the media that they refer to, and of the options that read them."""
    content = [entry.name, repr(replace(entry, columns="mean"))]
    for plain_set in plain_sets:
        content += [plain_set.key, *sorted(plain_set.media.properties_by_hash)]
    return hashlib.sha256("\x1f".join(content).encode()).hexdigest()


def _name_tests(entry: TaskEntry, tests: Sequence[PlainRows]) -> list[str]:
    names = [
        source.given_name or test_rows.name
        for source, test_rows in zip(entry.test, tests, strict=True)
    ]
    for name in names:
        if names.count(name) > 1:
            raise DataError(
                f"task '{entry.name}': {names.count(name)} test sets are called '{name}'; give each a `name`"
            )
    return names


def _split_places(
    entry: TaskEntry, plain_sets: Sequence[PlainRows], parsed: Sequence[Sequence[TaskRow]]
) -> dict[str, Sequence[TaskRow]]:
    """Return the development rows as one set, and each test set, by file or dataset."""
    count = len(entry.dev)
    sets: dict[str, Sequence[TaskRow]] = {}
    if count:
        sets[", ".join(plain_set.place for plain_set in plain_sets[:count])] = [
            r for p in parsed[:count] for r in p
        ]
    return sets | {
        plain_set.place: rows
        for plain_set, rows in zip(plain_sets[count:], parsed[count:], strict=True)
    }


def _sort_labels(rows: Sequence[TaskRow]) -> tuple[str, ...]:
    """Return the labels in order: numbers by value, other words by letters."""
    labels = set(labels_of(rows))
    if all(label.isdigit() for label in labels):
        return tuple(sorted(labels, key=int))
    return tuple(sorted(labels))


def _refuse_lacking(
    entry: TaskEntry, classes: Sequence[str], sets: Mapping[str, Sequence[TaskRow]]
) -> None:
    """Refuse classes without training rows, and classes without rows in a set of whole texts.

    A set of words may lack a class, as a language may have no word of that class.

    Raises:
        DataError: with a line for each set.
    """
    if len(classes) < 2:
        raise DataError(
            f"{next(iter(sets))}: task '{entry.name}' has the one label {join_some(classes)} to learn; "
            "there must be two"
        )
    learned = set(labels_of(next(iter(sets.values()))))
    faults = []
    for number, (place, rows) in enumerate(sets.items()):
        set_labels = set(labels_of(rows))
        if strange := sorted(set_labels - learned):
            faults.append(
                f"{place}: task '{entry.name}' has the label {join_some(strange, 5)} here and never in "
                "training; add such rows to `train`, or take these out"
            )
        lacking = [label for label in classes if label not in set_labels]
        if lacking and (entry.head == "classification" or number == 0):
            faults.append(
                f"{place}: task '{entry.name}' has no row of the label {join_some(lacking, 5)} here; take "
                "the label out everywhere, or split the rows again so that each set has every label"
            )
    if faults:
        raise DataError("\n".join(faults))


def _draw_halves(entry: TaskEntry, rows: Sequence[TaskRow]) -> tuple[list[TaskRow], list[TaskRow]]:
    """Return (training rows, development rows), split by a seed from the task's name.

    Raises:
        DataError: if one of the two would have no rows.
    """
    count = min(_MOST_DEV, math.ceil(len(rows) * entry.dev_share))
    order = shuffled(len(rows), stable_seed("dev", entry.name))
    dev_positions = set(order[:count].tolist())
    dev = [row for position, row in enumerate(rows) if position in dev_positions]
    train = [row for position, row in enumerate(rows) if position not in dev_positions]
    if not train:
        raise DataError(
            f"task '{entry.name}': of {len(rows)} training rows none is left beside those to choose "
            "settings by; give `dev`, or more rows"
        )
    return train, dev

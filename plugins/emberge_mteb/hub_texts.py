"""Texts that mteb's own tasks are scored on, read from their loaded data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from emberge.contracts import Side

# Attributes in which kinds of tasks name their columns of texts.
_COLUMNS = (
    *("column_names", "input_column_name", "input1_column_name", "input2_column_name"),
    *("text_column_name", "human_summaries_column_name", "machine_summaries_column_name"),
)


def task_texts(task: Any) -> Iterator[tuple[Side, str]]:
    """Yield the texts of a loaded task's evaluation splits; those of an aggregate are its parts'."""
    for part in getattr(task, "tasks", None) or [task]:
        for half in _halves(part):
            yield from _search(half) if isinstance(half, Mapping) else _rows(part, half)


def _halves(task: Any) -> Iterator[Any]:
    """Yield the data of each evaluation split, of every subset."""
    for subset in task.hf_subsets:
        splits = task.dataset.get(subset, task.dataset)
        yield from (splits[split] for split in task.eval_splits if split in splits)
        if splits is task.dataset:
            return  # one for all subsets


def _search(half: Mapping[str, Any]) -> Iterator[tuple[Side, str]]:
    for row in _without_media(half["queries"]):
        for text in _texts(row.get("text")):
            yield "query", text
    for row in _without_media(half["corpus"]):
        text = f"{row.get('title') or ''} {row.get('text') or ''}".strip()
        if text:
            yield "document", text


def _without_media(rows: Any) -> Any:
    """Return rows without images and clips, which would be decoded."""
    return rows.remove_columns([name for name in ("image", "audio") if name in rows.column_names])


def _rows(task: Any, half: Any) -> Iterator[tuple[Side, str]]:
    named = [getattr(task, name) for name in _COLUMNS if hasattr(task, name)]
    columns = [
        column for names in named for column in ([names] if isinstance(names, str) else names)
    ]
    known = [column for column in columns if column in half.column_names]
    for column in known or half.column_names:
        yield from (("query", text) for value in half[column] for text in _texts(value))


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a text, a list of them, or the turns of a conversation."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(value.get("content"))
    elif isinstance(value, Iterable):
        for item in value:
            yield from _texts(item)

"""Writer of catalogues and of their sets of examples, in the format that emberge reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from emberge import Example, Media, split_parts
from emberge.contracts import has_media, to_json
from emberge.data import StoredDataset
from emberge.files import write_text

CATALOGUE_FILE = "datasets.yaml"


Sets = Iterable[tuple[str, StoredDataset, Iterable[Example]]]


def write_catalogue(
    folder: Path,
    sets: Sets,
    parts: Mapping[str, Sets] | None = None,
    scored_by: tuple[str, ...] = (),
) -> None:
    """Write each set's examples to a file of JSON lines, and the catalogue that lists them.

    A set is a tuple (new name, original dataset, examples). It keeps the prompts and other facts of the
    original dataset; examples are written one by one. A set without examples is left out of the catalogue.
    The sets of `parts`, `dev` and `test`, are not for training. `scored_by` are the models whose scores
    replaced those of the original datasets.
    """
    content: dict[str, Any] = {"train": _write_sets(folder, sets, "", scored_by)}
    for part, part_sets in (parts or {}).items():
        if entries := _write_sets(folder, part_sets, f"{part}-", scored_by):
            content[part] = entries
    write_entries(folder, content)


def write_entries(folder: Path, entries: Mapping[str, Any]) -> None:
    """Write a step's catalogue into `folder`; `entries` maps its parts, such as `train`, to lists of sets."""
    content = {"format": 1, **entries}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
    write_text(folder / CATALOGUE_FILE, text)


def write_json_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows as JSON Lines, and return their number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def _write_sets(
    folder: Path, sets: Sets, prefix: str, scored_by: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Write the files of sets and return their catalogue entries."""
    entries: list[dict[str, Any]] = []
    for number, (name, dataset, examples) in enumerate(sets):
        file = f"{prefix}{number}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)[:80]}.jsonl"
        rows = (_build_row(example, dataset) for example in examples)
        count = write_json_rows(folder / file, rows)
        if not count:
            (folder / file).unlink()
            continue
        entries.append(
            {"name": name, "file": file, "rows": count, **_build_facts(dataset, scored_by)}
        )
    return entries


def _build_row(example: Example, dataset: StoredDataset) -> dict[str, Any]:
    """Return an example as a row whose columns are recognised by their names."""
    if dataset.info.task == "text":
        return {"text": _build_value(example.anchor)}
    if dataset.draws_positives:
        return {"text": _build_value(example.anchor), "label": example.label}
    row: dict[str, Any] = {
        "query": _build_value(example.anchor),
        "pos": [_build_value(text) for text in example.positives],
        "neg": [_build_value(text) for text in example.negatives],
    }
    if example.positive_scores is not None:
        row["pos_scores"] = example.positive_scores
    if example.negative_scores is not None:
        row["neg_scores"] = example.negative_scores
    if example.label is not None:
        row["label"] = example.label
    return row


def _build_value(text: str) -> Any:
    """Return an input as the value of a column: a text, or the list of its parts with the paths of media."""
    if not has_media(text):
        return text
    parts = split_parts(text)
    return {"parts": [{p.kind: p.path} if isinstance(p, Media) else p for p in parts]}


def _build_facts(dataset: StoredDataset, scored_by: tuple[str, ...]) -> dict[str, Any]:
    """Return the facts of a dataset for its catalogue entry, without those that have the default value."""
    entry, info = dataset.entry, dataset.info
    origin = replace(entry.origin, scored_by=scored_by or entry.origin.scored_by)
    facts: dict[str, Any] = {"task": info.task, "symmetric": dataset.symmetric}
    if info.scores is not None:
        facts["score_range"] = [0, 1]
    optional = {
        "language": entry.language,
        "instruction": entry.instruction or None,
        "prompt": dataset.prompt or None,
        "weight": entry.weight if entry.weight != 1 else None,
        "negatives": entry.negatives if entry.negatives != "auto" else None,
        "source": to_json(origin) or None,
        "ind_tasks": None if entry.ind_tasks is None else list(entry.ind_tasks),
    }
    return facts | {name: value for name, value in optional.items() if value is not None}

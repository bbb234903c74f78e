"""Section of a card on test texts in the training data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.documents import Section, TextTable
from emberge.results import OutFolder, read_artifact

_HEAD = ("Test", "Test texts", "In the data before", "Rows with them before", "After")


@dataclass(frozen=True, slots=True)
class Contamination:
    """Record of a step that searched training data for test texts, with counts by test.

    `words` is the length of the word sequences that it searched for; None if it searched for none.
    """

    step: str
    tests: Mapping[str, Mapping[str, int]]
    words: int | None = None


def contamination_behind(folder: Path, out: Path) -> tuple[Contamination, ...]:
    """Return the records of contamination steps in `out` among the result's direct and indirect inputs."""
    records: list[Contamination] = []
    waiting, met = [folder], set[str]()
    while waiting:
        for name in _list_inputs(waiting.pop(0)):
            if name in met:
                continue
            met.add(name)
            step_folder = OutFolder(out).link(name)
            artifact = read_artifact(step_folder) if step_folder.is_dir() else None
            if artifact is None:
                continue
            waiting.append(step_folder)
            record = artifact.details.get("contamination")
            if isinstance(record, Mapping) and isinstance(record.get("tests"), Mapping):
                records.append(Contamination(name, record["tests"], record.get("words")))
    return tuple(records)


def _list_inputs(folder: Path) -> Iterator[str]:
    """Yield the steps that are inputs of a result."""
    try:
        record = json.loads((folder / "artifact.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    for entry in record.get("inputs") or ():
        main = str(entry.get("reference", "")).partition("+")[0]
        if main.startswith("$"):
            yield main.removeprefix("$").removesuffix(".checkpoints")


def contamination_section(records: Sequence[Contamination]) -> Section | None:
    """Return the section on test texts in the training data, before and after their removal; None without."""
    passages: list[str | TextTable] = []
    for record in records:
        rows = [[test, *_format_counts(counts)] for test, counts in record.tests.items()]
        if rows:
            passages += [_explain_counts(record), TextTable(_HEAD, rows)]
    return Section("Test texts in the training data", passages) if passages else None


def _explain_counts(record: Contamination) -> str:
    runs = f", that share {record.words} words in a row," if record.words else ""
    return (
        f"Step {record.step} looked in the training data for texts that equal a test text{runs} or that are "
        "near one. Counted are distinct test texts, and the rows of training data that had any."
    )


def _format_counts(counts: Mapping[str, Any]) -> list[str]:
    counts_shown = (
        counts.get("queries", 0) + counts.get("documents", 0),
        counts.get("queries_found", 0) + counts.get("documents_found", 0),
        counts.get("rows_before", 0),
        counts.get("rows_after", 0),
    )
    return [f"{number:,}" for number in counts_shown]

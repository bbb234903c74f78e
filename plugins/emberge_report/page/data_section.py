"""Section of a page on data: rows that steps dropped or changed, with examples."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import DataError

from emberge_report.charts.markup import Markup, tag
from emberge_report.page.tables import fold, left, table

if TYPE_CHECKING:
    from emberge import Artifact


_COUNTS = ("rows", "kept", "dropped", "changed")
_REASONS = 5


@dataclass(frozen=True)
class ChangedData:
    """Counts of one step by set, with notes and examples, and sentences below them."""

    step: str
    sets: Mapping[str, Mapping[str, Any]]
    sentences: tuple[str, ...] = ()


def read_changes(step: str, folder: Path, artifact: Artifact) -> ChangedData | None:
    """Return the `changes` of a step's artifact with the examples of its file; None without.

    Raises:
        DataError: if the file cannot be read.
    """
    sets = artifact.details.get("changes")
    if not isinstance(sets, Mapping):
        return None
    file = artifact.details.get("examples")
    if isinstance(file, str):
        try:
            sets = json.loads((folder / file).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"'{step}': {file} cannot be read ({error})") from None
    sentences = artifact.details.get("sentences")
    lines = map(str, sentences) if isinstance(sentences, list | tuple) else ()
    return ChangedData(step, sets, tuple(lines))


def data_section(data: Sequence[ChangedData]) -> Markup:
    """Return a table of every step's counts, and the examples of each set to open."""
    return tag(
        "div",
        [
            [
                tag("h3", changes.step),
                _draw_counts(changes),
                *(tag("p", sentence) for sentence in changes.sentences),
                *_draw_examples(changes),
            ]
            for changes in data
        ],
    )


def _draw_counts(data: ChangedData) -> Markup:
    rows = [
        [
            tag("th", name, scope="row"),
            *(tag("td", f"{counts.get(key, 0):,}") for key in _COUNTS),
            tag("td", _list_reasons(counts), class_="words"),
        ]
        for name, counts in data.sets.items()
    ]
    head = ["Set", *(key.capitalize() for key in _COUNTS), left("Why")]
    return table(head, rows, f"Rows of {data.step}")


def _list_reasons(counts: Mapping[str, Any]) -> str:
    notes = [*counts.get("notes", {}).items()]
    reasons = [f"{note} ({count:,})" for note, count in notes[:_REASONS]]
    return "; ".join([*reasons, "…"] if len(notes) > _REASONS else reasons) or "–"


def _draw_examples(data: ChangedData) -> Iterator[Markup]:
    for name, counts in data.sets.items():
        examples = counts.get("examples", ())
        if examples:
            rows = [_draw_example(each) for each in examples]
            head = ["Row", left("Note"), left("Before"), left("After")]
            yield fold(f"{name}: {len(rows)} examples", table(head, rows, f"Examples of {name}"))


def _draw_example(example: Mapping[str, Any]) -> list[Markup]:
    after = example.get("after")
    note = ": ".join(str(example[key]) for key in ("note", "beside") if example.get(key))
    return [
        tag("th", f"{example.get('row', 0):,}", scope="row"),
        tag("td", note, class_="words"),
        tag("td", _draw_texts(example.get("before", {})), class_="words"),
        tag("td", "dropped" if after is None else _draw_texts(after), class_="words"),
    ]


def _draw_texts(parts: Mapping[str, Any]) -> list[Markup]:
    """Return each text of an example in a line, with its part."""
    lines = []
    for part, texts in parts.items():
        for text in [texts] if isinstance(texts, str) else texts:
            lines.append(tag("div", tag("b", f"{part.removesuffix('s')} "), str(text)))
    return lines

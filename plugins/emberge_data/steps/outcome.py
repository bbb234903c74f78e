"""Outcomes of rows (kept, changed or dropped), counted by set, with examples to read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from emberge import Example
from emberge.contracts import DataDetails, RowCounts
from emberge.wording import format_markdown_table, shorten, to_markdown

if TYPE_CHECKING:
    from emberge.data import StoredDataset


TABLE_FILE, CHANGES_FILE = "changes.md", "changes.json"
SHOWN_ROWS = 20
SHOWN_CHARACTERS = 200
SHOWN_TEXTS = 3
LONELY_NOTE = "no other row of its label is left"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one row: `after` is None if it is dropped; `note` has the reason, or the change.

    Rows are counted by their notes. `related_text` is shown next to the row if it is an example, such as the
    text that it repeats.
    """

    row: int
    before: Example
    after: Example | None
    note: str = ""
    related_text: str = ""


@dataclass
class SetChanges:
    """Counts of one set's outcomes, and the first SHOWN_ROWS of rows that were dropped or changed."""

    name: str
    rows: int = 0
    kept: int = 0
    changed: int = 0
    notes: Counter[str] = field(default_factory=Counter)
    examples: list[Outcome] = field(default_factory=list)

    @property
    def dropped(self) -> int:
        """Number of dropped rows."""
        return self.rows - self.kept

    def watch(self, outcomes: Iterable[Outcome]) -> Iterator[Example]:
        """Count all outcomes, and yield the examples of kept rows."""
        for outcome in outcomes:
            self.rows += 1
            self.kept += outcome.after is not None
            if outcome.after != outcome.before:
                self.changed += outcome.after is not None
                self.notes[outcome.note] += 1
                if len(self.examples) < SHOWN_ROWS:
                    self.examples.append(outcome)
            if outcome.after is not None:
                yield outcome.after

    @property
    def counts(self) -> RowCounts:
        """Numbers of rows, and the most frequent notes."""
        return RowCounts(
            rows=self.rows,
            kept=self.kept,
            dropped=self.dropped,
            changed=self.changed,
            notes=dict(self.notes.most_common(SHOWN_ROWS)),
        )

    def plain(self) -> dict[str, Any]:
        """Return counts, notes and examples as JSON values; rows count from 1."""
        examples = [_show_outcome(outcome) for outcome in self.examples]
        return {**asdict(self.counts), "examples": examples}


def _show_outcome(outcome: Outcome) -> dict[str, Any]:
    facts = {
        "row": outcome.row + 1,
        "note": outcome.note,
        "before": _show_example(outcome.before),
        "related_text": shorten(outcome.related_text, SHOWN_CHARACTERS),
        "after": outcome.after and _show_example(outcome.after),
    }
    return {name: value for name, value in facts.items() if value}


def _show_example(example: Example) -> dict[str, Any]:
    parts = {
        "anchor": shorten(example.anchor, SHOWN_CHARACTERS),
        "positives": _show_texts(example.positives, example.positive_scores),
        "negatives": _show_texts(example.negatives, example.negative_scores),
    }
    return {name: value for name, value in parts.items() if value}


def _show_texts(texts: Sequence[str], scores: Sequence[float] | None) -> list[str]:
    """Return the first texts, each with its score if it has one."""
    shown = [shorten(text, SHOWN_CHARACTERS) for text in texts[:SHOWN_TEXTS]]
    ends = [""] * len(shown) if scores is None else [f" (score {score:.3g})" for score in scores]
    return [f"{text}{end}" for text, end in zip(shown, ends, strict=False)]


def write_changes(
    folder: Path, title: str, sets: Sequence[SetChanges], notes: Sequence[str] = ()
) -> DataDetails:
    """Write the counts of all sets as a table, and with examples as JSON; return them as details.

    `notes` are sentences below the table.
    """
    from emberge.files import write_text

    counts = {changes.name: changes.counts for changes in sets}
    plain = {changes.name: changes.plain() for changes in sets}
    write_text(folder / CHANGES_FILE, json.dumps(plain, indent=1, ensure_ascii=False))
    lines = [draw_changes(title, sets), *notes]
    if any(changes.changed or changes.dropped for changes in sets):
        lines.append(f"Examples of dropped and changed rows are in `{CHANGES_FILE}`.")
    write_text(folder / TABLE_FILE, "\n\n".join(lines) + "\n")
    return DataDetails(changes=counts, sentences=list(notes), examples=CHANGES_FILE)


def draw_changes(title: str, sets: Iterable[SetChanges]) -> str:
    """Return the counts of all sets as a Markdown table."""
    rows = [
        [
            changes.name,
            *(f"{n:,}" for n in (changes.rows, changes.kept, changes.dropped, changes.changed)),
            "; ".join(f"{note} ({count:,})" for note, count in changes.notes.most_common(5)),
        ]
        for changes in sets
    ]
    head = ["set", "rows", "kept", "dropped", "changed", "why (rows)"]
    return "\n".join([f"# {to_markdown(title)}", "", *format_markdown_table(head, rows, "lrrrrl")])


def drop_rows_without_partners(
    dataset: StoredDataset, outcomes: Callable[[], Iterable[Outcome]]
) -> Iterator[Outcome]:
    """Yield the outcomes of rows; in a set that draws positives by label, drop a label's only remaining row.

    `outcomes` is called twice for such a set: once to count labels.
    """
    if not dataset.draws_positives:
        yield from outcomes()
        return
    rows_by_label = Counter(
        remaining.after.label for remaining in outcomes() if remaining.after is not None
    )
    for outcome in outcomes():
        is_alone = outcome.after is not None and rows_by_label[outcome.after.label] == 1
        yield replace(outcome, after=None, note=LONELY_NOTE) if is_alone else outcome


def drop_texts(
    example: Example, side: Literal["positive", "negative"], numbers: Collection[int]
) -> Example:
    """Return the example without the positives or negatives at these indices, and without their scores."""
    left: dict[str, Any] = {
        name: tuple(value for number, value in enumerate(values) if number not in numbers)
        for name in (f"{side}s", f"{side}_scores")
        if (values := getattr(example, name)) is not None
    }
    return replace(example, **left)

"""The columns of a file by their part in an example: anchor, positives, negatives, scores, label."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from emberge.contracts import MediaKind, TaskKind
from emberge.data.entry import Columns
from emberge.errors import suggest
from emberge.wording import shorten

ANCHOR_NAMES = (
    *("query", "anchor", "question", "sentence1", "sentence_1", "sentence_a", "premise"),
    *("text1", "question1", "sentence"),
)
POSITIVE_NAMES = (
    *("pos", "positive", "positives", "answer", "document", "passage", "hypothesis", "code"),
    *("sentence2", "sentence_2", "sentence_b", "text2", "question2"),
)
NEGATIVE_NAMES = ("neg", "negative", "negatives", "hard_negative", "hard_negatives")
SCORE_NAMES = ("score", "scores", "similarity_score")
LABEL_NAMES = ("label", "labels", "category")
TEXT_NAMES = ("text", "sentence", "query", "utterance")
# Names of columns whose text is the path of a medium, by the medium's kind.
MEDIA_NAMES: Mapping[str, MediaKind] = {
    **dict.fromkeys(("image", "images", "image_path", "image_file"), "image"),
    **dict.fromkeys(("audio", "audio_path", "audio_file"), "audio"),
}
# Names of columns with texts that describe the medium in another column.
CAPTION_NAMES = ("caption", "captions", "text", "transcription", "transcript", "description")
# Names of columns with pairs of texts that need not belong together; the label is their similarity.
SIMILARITY_NAMES = frozenset(
    {
        *("sentence1", "sentence_1", "sentence_a", "text1", "question1"),
        *("sentence2", "sentence_2", "sentence_b", "text2", "question2"),
    }
)
_LONGEST_HEADING = 50


@functools.lru_cache(maxsize=1024)
def fold_heading(name: str) -> str:
    """Return a heading in small letters, with `_` between words, as the usual names are written."""
    return "_".join(name.lower().replace("-", " ").split())


def fold_headings(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row with its values under small headings too; of two equal ones the first counts."""
    folded = {fold_heading(name): value for name, value in reversed([*row.items()])}
    return row if folded.keys() <= row.keys() else {**folded, **row}


class LayoutError(Exception):
    """The columns cannot be understood, so no row can be used."""


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """The columns for each part of an example; without positives, a row is a text, possibly with a label."""

    anchor: str
    positives: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()
    score: str | None = None
    positive_scores: str | None = None
    negative_scores: str | None = None
    label: str | None = None
    is_single: bool = False
    """True if a row is a single text without a label."""
    unit_score: bool = False
    """True if the score comes from a column that is a score only if its numbers are from 0 to 1."""

    @property
    def is_labelled(self) -> bool:
        """True if positives are drawn among the rows with the same label."""
        return not (self.positives or self.is_single)

    def describe(self) -> str:
        """Return a text for display that lists the columns by part."""
        parts = {
            "text" if self.is_single else "anchor": self.anchor,
            "positive": ", ".join(self.positives),
            "negative": ", ".join(self.negatives),
            "score": self.score or self.positive_scores,
            "label": self.label,
        }
        return ", ".join(f"{part} = {name}" for part, name in parts.items() if name)


def find_layout(
    names: Sequence[str], columns: Columns, task: TaskKind | None = None
) -> ColumnLayout:
    """Return the column of each part of an example: the one that `columns` names, else one with a usual name.

    Rows are single texts if the `task` is text, or if the only column is a text column.

    Raises:
        LayoutError: if the parts cannot be assigned; lists the existing columns, and how to name them.
    """
    named_columns = {part: name for part, name in vars(columns).items() if name is not None}
    for part, name in named_columns.items():
        if name not in names and not _find_numbered(name, names):
            raise LayoutError(
                f"columns: {part} names '{name}', which is not there{suggest(name, names)} "
                f"(columns: {', '.join(names)})"
            )
    is_text = len(names) == 1 and fold_heading(names[0]) in TEXT_NAMES
    if task == "text" or (task is None and is_text):
        return ColumnLayout(columns.anchor or _find_text_column(names), is_single=True)
    unused = [name for name in names if name not in named_columns.values()]
    anchor = columns.anchor or _find_one(unused, ANCHOR_NAMES, "anchor", names)
    unused = [name for name in unused if name != anchor]
    positive = columns.positive or _find_one(unused, POSITIVE_NAMES, "positive", names)
    unused = [name for name in unused if name != positive]
    anchor, positive = _place_media(unused, anchor, positive, names)
    if named_columns:
        negatives = _find_family(columns.negative, names) if columns.negative else ()
        layout = ColumnLayout(anchor or "", (), negatives, columns.score, label=columns.label)
    else:
        layout = _find_usual_layout(anchor or "", unused, names)
    if positive is None:
        return _find_labelled_layout(layout, columns, names)
    if anchor is None:
        raise LayoutError(
            f"no column for the anchor among {_list_columns(names)}; {_write_remedy(names)}"
        )
    layout = replace(layout, positives=_find_family(positive, names))
    return layout if named_columns else _place_label(layout, positive)


def _find_usual_layout(anchor: str, unused: Sequence[str], names: Sequence[str]) -> ColumnLayout:
    """Return a layout with negatives, scores and label by their usual names, this anchor and no positives."""
    negative = _find_one(unused, NEGATIVE_NAMES, "negative", names) or next(
        (name for name in NEGATIVE_NAMES if _find_numbered(name, unused)), None
    )
    return ColumnLayout(
        anchor,
        negatives=_find_family(negative, names) if negative else (),
        score=_find_one(unused, SCORE_NAMES, "score", names),
        label=_find_one(unused, LABEL_NAMES, "label", names),
        positive_scores=_find_one(unused, ("pos_scores", "positive_scores"), "score", names),
        negative_scores=_find_one(unused, ("neg_scores", "negative_scores"), "score", names),
    )


def find_media_kind(name: str) -> MediaKind | None:
    """Return the kind of media in a column of this name, by the usual names; None for text."""
    return MEDIA_NAMES.get(fold_heading(name))


def _place_media(
    unused: Sequence[str], anchor: str | None, positive: str | None, names: Sequence[str]
) -> tuple[str | None, str | None]:
    """Return the columns of anchor and positive; a media column is used for the part that has no column yet.

    If there is a query or a text, the media column is the positive. If there is a caption, the media column
    is the anchor, as it is in rows with a label and no text.
    """
    if anchor and positive:
        return anchor, positive
    medium = _find_one(unused, tuple(MEDIA_NAMES), "medium", names)
    if medium is None:
        return anchor, positive
    caption = _find_one(unused, CAPTION_NAMES, "caption", names)
    if positive is None and any(fold_heading(name) in LABEL_NAMES for name in unused):
        return anchor or (None if caption else medium), None
    return (anchor, medium) if anchor else (medium, positive or caption)


def _list_columns(names: Sequence[str]) -> str:
    """Return the names for a message; if one is as long as a text, with the probable reason."""
    is_data = any(len(name) > _LONGEST_HEADING for name in names)
    reason = " (the first line seems to be data: add a heading line)" if is_data else ""
    return ", ".join(shorten(name, _LONGEST_HEADING) for name in names) + reason


def _find_text_column(names: Sequence[str]) -> str:
    column = _find_one(names, TEXT_NAMES, "text", names) or (names[0] if len(names) == 1 else None)
    if column is None:
        raise LayoutError(
            f"no column for the text among {_list_columns(names)}; write columns: {{anchor: …}} in the entry"
        )
    return column


def _find_labelled_layout(
    layout: ColumnLayout, columns: Columns, names: Sequence[str]
) -> ColumnLayout:
    text = layout.anchor or _find_one(names, TEXT_NAMES, "text", names)
    if text and layout.label and not (layout.score or layout.positive_scores):
        return replace(layout, anchor=text, negatives=())
    named = f" (anchor is '{columns.anchor}')" if columns.anchor else ""
    raise LayoutError(
        f"no column for the {'positive' if text else 'anchor'}{named} among {_list_columns(names)}; "
        f"{_write_remedy(names, columns.anchor)}"
    )


def _place_label(layout: ColumnLayout, positive: str) -> ColumnLayout:
    """Return the layout with the label as the score, if the label grades the similarity of two texts."""
    if layout.label is None or layout.score is not None:
        return layout
    anchor, other = fold_heading(layout.anchor), fold_heading(positive)
    if (anchor, other) == ("premise", "hypothesis"):
        raise LayoutError(
            f"'{layout.label}' beside premise and hypothesis may be a class or a score; keep only the "
            "pairs that follow (contradictions as negative) and leave the column out, or write columns: "
            f"{{anchor: {layout.anchor}, positive: {positive}, score: {layout.label}}} if higher is closer"
        )
    if anchor in SIMILARITY_NAMES and other in SIMILARITY_NAMES:
        return replace(layout, score=layout.label, label=None, unit_score=True)
    return layout


def _find_one(
    unused: Iterable[str], usual: Sequence[str], part: str, names: Sequence[str]
) -> str | None:
    unused = list(unused)
    matches = [name for name in unused if name in usual]
    matches = matches or [name for name in unused if fold_heading(name) in usual]
    if len(matches) > 1:
        raise LayoutError(
            f"{' and '.join(matches)} could both be the {part} (columns: {', '.join(names)}); "
            f"{_write_remedy(names)}"
        )
    return matches[0] if matches else None


def _write_remedy(names: Sequence[str], anchor: str | None = None) -> str:
    """Return the remedy that names columns: the anchor's, and those with a usual name among their words."""
    short = [name for name in names if len(name) <= _LONGEST_HEADING]
    near_anchor, positive = (
        next((name for name in short if {*fold_heading(name).split("_")} & {*usual}), "…")
        for usual in (ANCHOR_NAMES, POSITIVE_NAMES)
    )
    columns = f"{{anchor: {anchor or near_anchor}, positive: {positive}}}"
    return f"write columns: {columns} (and negative, score or label) in the entry"


def _find_numbered(name: str, names: Iterable[str]) -> list[str]:
    pattern = re.compile(rf"{re.escape(fold_heading(name))}_?(\d+)")
    matches = ((pattern.fullmatch(fold_heading(n)), n) for n in names)
    numbered_names = [(int(match[1]), n) for match, n in matches if match]
    return [n for _, n in sorted(numbered_names)]


def _find_family(name: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return a column and its numbered variants (`negative_1`, `negative_2`, …)."""
    return (*((name,) if name in names else ()), *_find_numbered(name, names))

"""Evaluation sets that are too small to tell models apart, and what can be told with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from emberge.contracts import BadRow, Reader, Split
from emberge.data.data_sources import find_reader
from emberge.data.entry import EvalSet
from emberge.data.evaluation.beir_files import find_judgement_file
from emberge.data.evaluation.eval_sets import find_half_file
from emberge.data.rows.columns import LayoutError
from emberge.data.rows.line_files import read_text_lines
from emberge.data.rows.media_values import MediaValues
from emberge.data.rows.row_parser import RowError, RowParser
from emberge.errors import EmbergeError
from emberge.media import MediaFolder
from emberge.wording import count_noun

ENOUGH = 100
_MOST_ROWS = 20_000  # rows looked at, for a set of few queries with many documents each
# Standard deviation over queries, in points of nDCG@10, of a score and of the difference of two models.
_SCORE_SPREAD = 40.0
_DIFFERENCE_SPREAD = 20.0


def describe_small_sets(
    sets: Sequence[EvalSet], split: Split, readers: Sequence[Reader]
) -> Iterator[str]:
    """Yield a warning for each set with fewer than ENOUGH queries: the width of intervals with so few.

    A set whose files cannot be read, which is a problem of its own, is left out.
    """
    for eval_set in sets:
        try:
            count = _count_units(eval_set, split, readers)
        except (EmbergeError, LayoutError, RowError, OSError):
            continue
        if 0 < count < ENOUGH:
            noun = "query" if eval_set.task in ("retrieval", "reranking") else "row"
            yield describe_small_set(eval_set.name, count, noun)


def describe_small_set(name: str, count: int, noun: str = "query") -> str:
    """Return what can be told with a set of so few queries: half widths of 95 % intervals, in points."""
    score, difference = (1.96 * s / count**0.5 for s in (_SCORE_SPREAD, _DIFFERENCE_SPREAD))
    return (
        f"set '{name}' has {count_noun(count, noun)}; with so few, the 95 % interval of a score is about ± "
        f"{score:.0f} points, and that of a difference between two models about ± {difference:.0f}, so that "
        f"smaller gains cannot be told from chance; take {ENOUGH} or more"
    )


def _count_units(eval_set: EvalSet, split: Split, readers: Sequence[Reader]) -> int:
    """Return the number of queries or rows of a half; ENOUGH if there are as many or too many to count."""
    if eval_set.rows is None and eval_set.task == "retrieval":
        path = find_judgement_file(eval_set, split)
        judgements = (text for _, text in read_text_lines(path) if not text.endswith("score"))
        return _count_distinct(text.partition("\t")[0] for text in judgements if text.strip())
    path = find_half_file(eval_set, split, readers)
    rows = (row for _, row in find_reader(path, readers).rows(path))
    if eval_set.rows is None or eval_set.task != "retrieval":
        return sum(1 for _ in islice(rows, ENOUGH))
    media = MediaValues(MediaFolder(beside=path.parent))
    parse = RowParser(eval_set.rows.columns, eval_set.task, media)
    return _count_distinct(parse(row).anchor for row in rows if not isinstance(row, BadRow))


def _count_distinct(texts: Iterator[str]) -> int:
    """Return the number of distinct texts; ENOUGH once there are as many, or more than _MOST_ROWS texts."""
    distinct: set[str] = set()
    for number, text in enumerate(texts):
        distinct.add(text)
        if len(distinct) >= ENOUGH or number >= _MOST_ROWS:
            return ENOUGH
    return len(distinct)

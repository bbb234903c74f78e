"""Warnings of evaluation sets: too few queries to compare models, and rows that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from emberge.contracts import BadRow, Reader, Split
from emberge.data.data_sources import find_reader
from emberge.data.entry import EvalSet
from emberge.data.evaluation.beir_files import read_judgements
from emberge.data.evaluation.eval_sets import find_half_file
from emberge.data.evaluation.set_checks import look_at_set
from emberge.data.evaluation.set_faults import SetFaults
from emberge.data.rows.columns import LayoutError
from emberge.data.rows.media_values import MediaValues
from emberge.data.rows.row_parser import RowError, RowParser
from emberge.errors import EmbergeError
from emberge.media import MediaFolder
from emberge.wording import count_noun

_ENOUGH = 100
_MOST_ROWS = 20_000  # rows looked at, for a set of few queries with many documents each
# Standard deviation over queries, in points of nDCG@10, of a score and of a fine-tuned model's difference
# from its base. Measured with all-MiniLM-L6-v2 and 30 trainings and merges of it on samples of humaneval,
# medquad, nl2bash, nq, scifact and squad (163 or 300 queries each): median of the sets' medians over models.
# By set the medians are from 14 to 38, and from 6 (nq) to 21 (nl2bash).
_SCORE_SPREAD = 33.0
_DIFFERENCE_SPREAD = 12.0


def describe_odd_sets(
    sets: Sequence[EvalSet], split: Split, readers: Sequence[Reader]
) -> Iterator[str]:
    """Yield warnings: the width of intervals of a set with fewer than _ENOUGH queries, and contradictions.

    A set whose files cannot be read, which is a problem of its own, is left out.
    """
    for eval_set in sets:
        try:
            looked = look_at_set(eval_set, split, tuple(readers))
            yield from looked[1] if looked else ()
            count = _count_units(eval_set, split, readers)
        except (EmbergeError, LayoutError, RowError, OSError):
            continue
        noun = "query" if eval_set.task in ("retrieval", "reranking") else "row"
        warning = describe_small_set(eval_set.name, count, noun)
        if warning is not None:
            yield warning


def describe_small_set(name: str, count: int, noun: str = "query") -> str | None:
    """Return the warning of a set with few queries, with half widths of its 95 % intervals in points.

    It is None if the set has enough queries to compare models, or none at all.
    """
    if not 0 < count < _ENOUGH:
        return None
    score, difference = (1.96 * s / count**0.5 for s in (_SCORE_SPREAD, _DIFFERENCE_SPREAD))
    return (
        f"set '{name}' has {count_noun(count, noun)}; with so few, the 95 % interval of a score is about ± "
        f"{score:.0f} points, and that of a model's gain over its base about ± {difference:.0f}, so that "
        f"smaller gains cannot be told from chance; take {_ENOUGH} or more"
    )


def _count_units(eval_set: EvalSet, split: Split, readers: Sequence[Reader]) -> int:
    """Return the number of queries or rows of a half; _ENOUGH or more if they are not all counted."""
    if eval_set.rows is None and eval_set.task == "retrieval":
        _, judgements = read_judgements(eval_set, split, SetFaults())
        return len({query for _, (query, _, _) in judgements})
    path = find_half_file(eval_set, split, readers)
    rows = (row for _, row in find_reader(path, readers).rows(path))
    if eval_set.rows is None or eval_set.task != "retrieval":
        return sum(1 for _ in islice(rows, _ENOUGH))
    media = MediaValues(MediaFolder(beside=path.parent))
    parse = RowParser(eval_set.rows.columns, eval_set.task, media)
    return _count_distinct(parse(row).anchor for row in rows if not isinstance(row, BadRow))


def _count_distinct(texts: Iterator[str]) -> int:
    """Return the number of distinct texts; _ENOUGH once there are as many, or more than _MOST_ROWS texts."""
    distinct: set[str] = set()
    for number, text in enumerate(texts):
        distinct.add(text)
        if len(distinct) >= _ENOUGH or number >= _MOST_ROWS:
            return _ENOUGH
    return len(distinct)

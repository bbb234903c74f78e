"""Warnings of evaluation sets: too few queries to compare models, and rows that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from emberge.contracts import Reader, Split
from emberge.data.entry import EvalSet
from emberge.data.evaluation.eval_sets import lacking_half
from emberge.data.evaluation.set_checks import look_at_set
from emberge.wording import count_noun

_ENOUGH = 100
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

    A set whose files cannot be read, which is a problem of its own, or are large, is left out.
    """
    for eval_set in sets:
        if lacking_half(eval_set, split, readers) is not None:
            continue
        if (seen := look_at_set(eval_set, split, tuple(readers))) is not None:
            yield from seen.oddities
            noun = "query" if eval_set.task in ("retrieval", "reranking") else "row"
            if warning := describe_small_set(eval_set.name, seen.scored, noun):
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

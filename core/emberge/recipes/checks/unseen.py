"""Things that a check could not look at, each once, and how many there are of a kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from emberge.errors import Problem
from emberge.wording import count_noun


def places_by_message(problems: Iterable[Problem]) -> dict[str, list[str]]:
    """Return the places of each message, in the order in which they come."""
    found: dict[str, list[str]] = {}
    for problem in problems:
        found.setdefault(problem.message, []).append(problem.where)
    return {message: list(dict.fromkeys(places)) for message, places in found.items()}


def unseen_counts(problems: Iterable[Problem]) -> str:
    """Return how many different things there are of each kind: `3 models, 12 datasets`; "" for none."""
    different = {(problem.message, problem.about) for problem in problems}
    counted = Counter(about for _, about in different)
    return ", ".join(count_noun(count, about) for about, count in sorted(counted.items()))

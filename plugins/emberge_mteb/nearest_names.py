"""Names of mteb's tasks and benchmarks that may have been meant by one that it does not have."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_OFFERED = 3
_SHORTEST_PART = 3


def nearest_tasks(name: str) -> str:
    """Return `"; did you mean 'X', 'Y' or 'Z'?"` for mteb's tasks of text, or nothing."""
    import mteb

    tasks = mteb.get_tasks(
        modalities=["text"], exclusive_modality_filter=True, exclude_superseded=False
    )
    return nearest_names(name, (task.metadata.name for task in tasks))


def nearest_benchmarks(name: str) -> str:
    """Return the same for mteb's benchmarks."""
    import mteb

    return nearest_names(name, (benchmark.name for benchmark in mteb.get_benchmarks()))


def nearest_names(name: str, known: Iterable[str]) -> str:
    """Return up to three known names as a hint, nearest first; nothing where none is near.

    A name of which only a part was written comes before one that is spelt alike: `Banking77` is
    `Banking77Classification`, and not `RuBQReranking`, whatever a ratio of equal letters says. Among those
    a set comes before its translations (`NFCorpus` before `NFCorpus-PL`) and the short before the long.
    """
    word = name.casefold()
    folded = {one.casefold(): one for one in known}
    close = difflib.get_close_matches(word, folded, n=_OFFERED, cutoff=0.65)
    longer = [one for one in folded if word in one] if len(word) >= _SHORTEST_PART else []
    longer.sort(key=lambda one: (not one.startswith(word), "-" in one, len(one), one))
    found = [folded[one] for one in dict.fromkeys([*longer, *close])][:_OFFERED]
    if not found:
        return ""
    *others, last = [f"'{one}'" for one in found]
    return f"; did you mean {', '.join(others)} or {last}?" if others else f"; did you mean {last}?"

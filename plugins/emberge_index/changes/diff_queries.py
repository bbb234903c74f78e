"""The verb `diff-queries`: which real queries find other documents under a new model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import DataError, RecipeError
from emberge.engine import write_text

from emberge_index.changes.changed_queries import (
    FIRST,
    GROUPS,
    Change,
    Changes,
    changes_of,
    first_hits,
)
from emberge_index.space.one_space import Space, space_at
from emberge_index.space.stored_vectors import read_texts

if TYPE_CHECKING:
    from emberge import Plugins

__all__ = ["run"]

# Queries that the terminal and the page show, and the characters of a text there.
_SHOWN, _PAGE, _LONG = 10, 200, 120


def run(options: argparse.Namespace, plugins: Plugins) -> int:
    """Print the queries that change most, write the files, and return the exit code."""
    for file in (options.json, options.page):
        if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
            raise RecipeError(f"{file}: give a file in a folder that exists")
    if options.page is not None and not plugins.hook.draw_page.get_hookimpls():
        raise RecipeError("--page: no plugin that draws pages is loaded; leave it out, or load one")
    queries, documents = (_texts(path) for path in (options.queries, options.documents))
    old, new = (space_at(text, options, plugins) for text in (options.old, options.new))
    found = changes_of(*(_hits(space, queries, documents) for space in (old, new)))
    print("\n".join(_lines(found, queries, documents)))
    if options.json is not None:
        content = {"old": old.name, "new": new.name, **_plain(found, queries, documents)}
        write_text(options.json, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        print(f"written: {options.json}")
    if options.page is not None:
        title = f"Queries from {old.name} to {new.name}"
        figure = _figure(found, queries, documents)
        page = plugins.hook.draw_page(title=title, notes=[_summary(found)], figures=[figure])
        write_text(options.page, str(page))
        print(f"written: {options.page}")
    return 0


def _texts(path: Path) -> list[str]:
    found = read_texts(path)
    if not found:
        raise DataError(f"{path}: has no text; give a line for each")
    return found


def _hits(space: Space, queries: Sequence[str], documents: Sequence[str]) -> Any:
    asked = space.queries(queries)
    rows = space.documents(queries) if asked is None else asked
    return first_hits(rows, space.documents(documents))


def _summary(found: Changes) -> str:
    groups = ", ".join(f"{found.count(group)} {group}" for group in GROUPS if found.count(group))
    return (
        f"Of {len(found.all)} queries {found.churn:.0%} have another first document, and "
        f"{found.overlap:.0%} of the first {FIRST} stay: {groups}."
    )


def _lines(found: Changes, queries: Sequence[str], documents: Sequence[str]) -> Iterator[str]:
    yield _summary(found)
    for one in found.all[:_SHOWN]:
        if one.group == "same":
            return
        yield f"{one.group}, {one.overlap:.0%} kept: {_short(queries[one.query])}"
        yield f"  - {_short(documents[one.old[0]])}"
        yield f"  + {_short(documents[one.new[0]])}"


def _plain(found: Changes, queries: Sequence[str], documents: Sequence[str]) -> dict[str, Any]:
    def plain(one: Change) -> dict[str, Any]:
        return {
            "query": queries[one.query],
            "group": one.group,
            "overlap": one.overlap,
            "old": list(one.old),
            "new": list(one.new),
            "lost": [documents[place] for place in one.lost],
            "gained": [documents[place] for place in one.gained],
        }

    return {
        "overlap": found.overlap,
        "churn": found.churn,
        "groups": {group: found.count(group) for group in GROUPS},
        "queries": [plain(one) for one in found.all],
    }


def _figure(found: Changes, queries: Sequence[str], documents: Sequence[str]) -> dict[str, Any]:
    """Return the overlaps of all queries as a chart, and the worst ones as its table."""
    width = len(found.all[0].old)
    counts = [
        sum(round(one.overlap * width) == kept for one in found.all) for kept in range(width + 1)
    ]
    changed = [one for one in found.all[:_PAGE] if one.group != "same"]
    rows = [
        [
            one.group,
            f"{one.overlap:.0%}",
            _short(queries[one.query]),
            _short(documents[one.old[0]]),
            _short(documents[one.new[0]]),
        ]
        for one in changed
    ]
    head = ["change", "kept", "query", "first document before", "first document now"]
    return {
        "title": f"Old hits among the first {width} of the new model",
        "caption": "Number of queries by how many of their documents stay; the worst are in the table.",
        "lines": {
            "x": "documents that stay",
            "y": "queries",
            "labels": [str(kept) for kept in range(width + 1)],
            "series": {"queries": counts},
        },
        "table": {"title": "Queries that change most", "head": head, "rows": rows},
    }


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONG else f"{flat[:_LONG]}…"

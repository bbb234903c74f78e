"""The verb `diff-queries`: which real queries find other documents under a new model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from emberge.data import read_texts
from emberge.documents import Page
from emberge.files import write_text
from emberge.numerics import nearest_rows
from emberge.wording import count_noun

from emberge_index.query_changes import (
    FIRST,
    GROUPS,
    QueryChange,
    QueryChanges,
    Topic,
    changes_of,
    topics_of,
)
from emberge_index.space import ModelSpace, space_at

if TYPE_CHECKING:
    from emberge import Plugins


# Queries that the terminal and the page show, and the characters of a text there.
_SHOWN, _PAGE, _LONG = 10, 200, 120


def run(options: argparse.Namespace, plugins: Plugins) -> int:
    """Print the queries that change most, write the files, and return the exit code."""
    reporter = plugins.require("reporter", "--page") if options.page is not None else None
    queries, documents = (read_texts(path) for path in (options.queries, options.documents))
    old, new = (space_at(text, options, plugins) for text in (options.old, options.new))
    asked = [_embed_queries(space, queries) for space in (old, new)]
    hits: list[Any] = [
        nearest_rows(rows, space.documents(documents), FIRST)
        for space, rows in zip((old, new), asked, strict=True)
    ]
    found = changes_of(*hits)
    topics = topics_of(asked[0], queries, found, options.topics) if options.topics else []
    print("\n".join([*_list_topics(topics, queries), *_list_changes(found, queries, documents)]))
    if options.json is not None:
        content = {
            "old": old.name,
            "new": new.name,
            **_changes_as_json(found, topics, queries, documents),
        }
        write_text(options.json, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        print(f"written: {options.json}")
    if reporter is not None:
        title = f"Queries from {old.name} to {new.name}"
        figures = [_build_figure(found, queries, documents)]
        if topics:
            figures.insert(0, _build_topic_figure(topics, queries))
        page = reporter.draw_page(Page(title, [_summarise_changes(found)], figures))
        write_text(options.page, page)
        print(f"written: {options.page}")
    return 0


def _embed_queries(space: ModelSpace, queries: Sequence[str]) -> Any:
    """Return the vectors of texts as queries, which of some models are those of documents."""
    asked = space.queries(queries)
    return space.documents(queries) if asked is None else asked


def _summarise_changes(found: QueryChanges) -> str:
    groups = ", ".join(f"{found.count(group)} {group}" for group in GROUPS if found.count(group))
    return (
        f"Of {len(found.all)} queries {found.churn:.0%} have another first document, and "
        f"{found.overlap:.0%} of the first {FIRST} stay: {groups}."
    )


def _list_changes(
    found: QueryChanges, queries: Sequence[str], documents: Sequence[str]
) -> Iterator[str]:
    yield _summarise_changes(found)
    for one in found.all[:_SHOWN]:
        if one.group == "same":
            return
        yield f"{one.group}, {one.overlap:.0%} kept: {_shorten_text(queries[one.query])}"
        yield f"  - {_shorten_text(documents[one.old[0]])}"
        yield f"  + {_shorten_text(documents[one.new[0]])}"


def _list_topics(topics: Sequence[Topic], queries: Sequence[str]) -> Iterator[str]:
    if topics:
        yield "topics, the worst first"
    for one in topics:
        yield (
            f"{_name_topic(one, queries)}: {count_noun(one.size, 'query')}, "
            f"{one.changes.overlap:.0%} kept, {one.changes.churn:.0%} with another first document"
        )


def _name_topic(topic: Topic, queries: Sequence[str]) -> str:
    """Return the telling words of a topic, or its most central query."""
    return ", ".join(topic.words) or _shorten_text(queries[topic.central])


def _changes_as_json(
    found: QueryChanges, topics: Sequence[Topic], queries: Sequence[str], documents: Sequence[str]
) -> dict[str, Any]:
    topic_of = {one.query: place for place, topic in enumerate(topics) for one in topic.changes.all}

    def plain(one: QueryChange) -> dict[str, Any]:
        return {
            "query": queries[one.query],
            "group": one.group,
            "overlap": one.overlap,
            "old": list(one.old),
            "new": list(one.new),
            "lost": [documents[place] for place in one.lost],
            "gained": [documents[place] for place in one.gained],
            **({"topic": topic_of[one.query]} if topics else {}),
        }

    def of_topic(one: Topic) -> dict[str, Any]:
        return {
            "words": list(one.words),
            "central": queries[one.central],
            "queries": one.size,
            "overlap": one.changes.overlap,
            "churn": one.changes.churn,
        }

    return {
        "overlap": found.overlap,
        "churn": found.churn,
        "groups": {group: found.count(group) for group in GROUPS},
        **({"topics": [of_topic(one) for one in topics]} if topics else {}),
        "queries": [plain(one) for one in found.all],
    }


def _build_topic_figure(topics: Sequence[Topic], queries: Sequence[str]) -> dict[str, Any]:
    """Return what each topic keeps as a chart, and the topics by name as its table."""
    rows = [
        [
            str(place),
            _name_topic(one, queries),
            str(one.size),
            f"{one.changes.overlap:.0%}",
            f"{one.changes.churn:.0%}",
            _shorten_text(queries[one.central]),
        ]
        for place, one in enumerate(topics, 1)
    ]
    head = ["topic", "words", "queries", "kept", "another first document", "most central query"]
    return {
        "title": "Topics, the worst first",
        "caption": "Queries that are alike to the old model: the share of their old hits that stay, and of "
        "queries whose first document stays.",
        "lines": {
            "x": "topic",
            "y": "share that stays",
            "labels": [row[0] for row in rows],
            "series": {
                "hits": [one.changes.overlap for one in topics],
                "first documents": [1 - one.changes.churn for one in topics],
            },
        },
        "table": {"title": "Topics", "head": head, "rows": rows},
    }


def _build_figure(
    found: QueryChanges, queries: Sequence[str], documents: Sequence[str]
) -> dict[str, Any]:
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
            _shorten_text(queries[one.query]),
            _shorten_text(documents[one.old[0]]),
            _shorten_text(documents[one.new[0]]),
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


def _shorten_text(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONG else f"{flat[:_LONG]}…"

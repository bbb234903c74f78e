"""The verb `diff-queries`: logged queries whose hits change under a new model."""

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
    query_vectors = [_embed_queries(space, queries) for space in (old, new)]
    hits: list[Any] = [
        nearest_rows(rows, space.documents(documents), FIRST)
        for space, rows in zip((old, new), query_vectors, strict=True)
    ]
    changes = changes_of(*hits)
    topics = topics_of(query_vectors[0], queries, changes, options.topics) if options.topics else []
    print("\n".join([*_list_topics(topics, queries), *_list_changes(changes, queries, documents)]))
    if options.json is not None:
        content = {
            "old": old.name,
            "new": new.name,
            **_encode_changes(changes, topics, queries, documents),
        }
        write_text(options.json, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        print(f"written: {options.json}")
    if reporter is not None:
        title = f"Queries from {old.name} to {new.name}"
        figures = [_build_figure(changes, queries, documents)]
        if topics:
            figures.insert(0, _build_topic_figure(topics, queries))
        page = reporter.draw_page(Page(title, [_summarise_changes(changes)], figures))
        write_text(options.page, page)
        print(f"written: {options.page}")
    return 0


def _embed_queries(space: ModelSpace, queries: Sequence[str]) -> Any:
    """Return the vectors of texts as queries, or as documents for a model without a query prompt."""
    query_vectors = space.queries(queries)
    return space.documents(queries) if query_vectors is None else query_vectors


def _summarise_changes(changes: QueryChanges) -> str:
    groups = ", ".join(
        f"{changes.count(group)} {group}" for group in GROUPS if changes.count(group)
    )
    return (
        f"Of {len(changes.all)} queries {changes.churn:.0%} have another first document, and "
        f"{changes.overlap:.0%} of the first {FIRST} stay: {groups}."
    )


def _list_changes(
    changes: QueryChanges, queries: Sequence[str], documents: Sequence[str]
) -> Iterator[str]:
    yield _summarise_changes(changes)
    for change in changes.all[:_SHOWN]:
        if change.group == "same":
            return
        yield f"{change.group}, {change.overlap:.0%} kept: {_cut_text(queries[change.query])}"
        yield f"  - {_cut_text(documents[change.old[0]])}"
        yield f"  + {_cut_text(documents[change.new[0]])}"


def _list_topics(topics: Sequence[Topic], queries: Sequence[str]) -> Iterator[str]:
    if topics:
        yield "topics, the worst first"
    for topic in topics:
        yield (
            f"{_name_topic(topic, queries)}: {count_noun(topic.size, 'query')}, "
            f"{topic.changes.overlap:.0%} kept, {topic.changes.churn:.0%} with another first document"
        )


def _name_topic(topic: Topic, queries: Sequence[str]) -> str:
    """Return the topic's words, or its most central query if it has none."""
    return ", ".join(topic.words) or _cut_text(queries[topic.central])


def _encode_changes(
    changes: QueryChanges, topics: Sequence[Topic], queries: Sequence[str], documents: Sequence[str]
) -> dict[str, Any]:
    topic_of = {
        change.query: number for number, topic in enumerate(topics) for change in topic.changes.all
    }

    def encode_change(change: QueryChange) -> dict[str, Any]:
        return {
            "query": queries[change.query],
            "group": change.group,
            "overlap": change.overlap,
            "old": list(change.old),
            "new": list(change.new),
            "lost": [documents[number] for number in change.lost],
            "gained": [documents[number] for number in change.gained],
            **({"topic": topic_of[change.query]} if topics else {}),
        }

    def encode_topic(topic: Topic) -> dict[str, Any]:
        return {
            "words": list(topic.words),
            "central": queries[topic.central],
            "queries": topic.size,
            "overlap": topic.changes.overlap,
            "churn": topic.changes.churn,
        }

    return {
        "overlap": changes.overlap,
        "churn": changes.churn,
        "groups": {group: changes.count(group) for group in GROUPS},
        **({"topics": [encode_topic(topic) for topic in topics]} if topics else {}),
        "queries": [encode_change(change) for change in changes.all],
    }


def _build_topic_figure(topics: Sequence[Topic], queries: Sequence[str]) -> dict[str, Any]:
    """Return the figure of each topic's kept hits: a chart, and a table of the topics."""
    rows = [
        [
            str(rank),
            _name_topic(topic, queries),
            str(topic.size),
            f"{topic.changes.overlap:.0%}",
            f"{topic.changes.churn:.0%}",
            _cut_text(queries[topic.central]),
        ]
        for rank, topic in enumerate(topics, 1)
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
                "hits": [topic.changes.overlap for topic in topics],
                "first documents": [1 - topic.changes.churn for topic in topics],
            },
        },
        "table": {"title": "Topics", "head": head, "rows": rows},
    }


def _build_figure(
    changes: QueryChanges, queries: Sequence[str], documents: Sequence[str]
) -> dict[str, Any]:
    """Return the figure of all queries' overlaps: a chart, and a table of the worst queries."""
    width = len(changes.all[0].old)
    counts = [
        sum(round(change.overlap * width) == count for change in changes.all)
        for count in range(width + 1)
    ]
    changed = [change for change in changes.all[:_PAGE] if change.group != "same"]
    rows = [
        [
            change.group,
            f"{change.overlap:.0%}",
            _cut_text(queries[change.query]),
            _cut_text(documents[change.old[0]]),
            _cut_text(documents[change.new[0]]),
        ]
        for change in changed
    ]
    head = ["change", "kept", "query", "first document before", "first document now"]
    return {
        "title": f"Old hits among the first {width} of the new model",
        "caption": "Number of queries by how many of their documents stay; the worst are in the table.",
        "lines": {
            "x": "documents that stay",
            "y": "queries",
            "labels": [str(count) for count in range(width + 1)],
            "series": {"queries": counts},
        },
        "table": {"title": "Queries that change most", "head": head, "rows": rows},
    }


def _cut_text(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONG else f"{flat[:_LONG]}…"

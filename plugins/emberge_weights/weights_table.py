"""Table of a search in Markdown, from the facts of its file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from emberge.wording import Markdown, prose, table_lines

Facts = Mapping[str, Any]


def table(facts: Facts) -> str:
    """Return the tables of a search, from its conclusion to the front; scores × 100."""
    parts = [
        _write_head(facts),
        _write_members(facts),
        _write_sets(facts),
        _write_merges(facts),
        _write_front(facts),
    ]
    return "\n".join(line for part in parts for line in part).rstrip() + "\n"


def _write_head(facts: Facts) -> Iterator[str]:
    score, headroom = facts["score"], facts["headroom"]
    yield "# Weights found"
    yield ""
    over_base = facts["over_base"]
    is_cautious = over_base is not None and over_base["low"] <= 0
    kept = "." if is_cautious else ", so the equal weights stay."
    conclusion = "weights were chosen." if facts["clear"] else f"that is no more than chance{kept}"
    yield (
        f"Choosing among {facts['candidates']:,} weightings gains {_show_change(headroom)} points over equal "
        f"weights on queries that were not chosen by: {conclusion}"
    )
    if facts["clear"]:
        yield (
            f"On all queries, merged for real, the choice gains {_show_change(score['over_equal'])}."
        )
    if is_cautious:
        yield (
            f"Equal weights gain {_show_change(over_base)} over the base alone, which is no more than chance "
            "either, so the base has a half."
        )
    yield ""


def _write_members(facts: Facts) -> Iterator[str]:
    rows = [
        [member["name"], f"{member['weight']:.3f}", _format_points(member["alone"])]
        for member in facts["members"]
    ]
    yield from _write_rows(["member", "weight", "alone"], rows)


def _write_sets(facts: Facts) -> Iterator[str]:
    rows = [
        [
            weight_set["name"] + (" (elsewhere)" if weight_set["elsewhere"] else ""),
            f"{weight_set['units']:,}",
            _format_points(weight_set["equal"]),
            _format_points(weight_set["chosen"]),
        ]
        for weight_set in facts["sets"]
    ]
    yield from _write_rows(["set", "queries or pairs", "equal weights", "chosen"], rows)


def _write_merges(facts: Facts) -> Iterator[str]:
    names = [entry["name"] for entry in facts["members"]]
    rows = [
        [
            *_format_weights(entry["weights"]),
            _format_points(entry["foretold"]),
            _format_points(entry["real"]),
        ]
        for entry in facts["merges"]
    ]
    yield "## Merged for real"
    yield ""
    yield from _write_rows([*names, "foretold", "real"], rows)
    yield f"What is foretold is corrected by the mean difference, {100 * facts['correction']:+.2f}."
    yield ""


def _write_front(facts: Facts) -> Iterator[str]:
    if not facts["front"]:
        return
    names = [entry["name"] for entry in facts["members"]]
    rows = [
        [
            *_format_weights(entry["weights"]),
            f"{100 * entry['gain']:+.2f}",
            f"{100 * entry['elsewhere']:+.2f}",
        ]
        for entry in facts["front"]
    ]
    yield f"## Gain over {prose(facts['front'][0]['over'])}, and loss elsewhere"
    yield ""
    yield from _write_rows([*names, "data", "elsewhere"], rows)


def _format_weights(weights: Mapping[str, float]) -> list[str]:
    return [f"{weight:.2f}" for weight in weights.values()]


def _format_points(score: float) -> str:
    return f"{100 * score:.2f}"


def _show_change(gain: Mapping[str, float]) -> Markdown:
    """Return a difference in points with its interval."""
    low, high = 100 * gain["low"], 100 * gain["high"]
    return Markdown(f"{100 * gain['difference']:+.2f} [{low:+.2f}, {high:+.2f}]")


def _write_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from table_lines(head, rows)
    yield ""

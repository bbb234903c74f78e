"""The part of a page that tells scores: a panel of dots a task, the table, differences, requirements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emberge_standard.reporting.dot_chart import Dot, dot_chart, range_of
from emberge_standard.reporting.markup import Child, Markup, tag
from emberge_standard.reporting.marks import NEUTRAL, Look
from emberge_standard.reporting.scores import MEANS, Comparison, Scores, Task
from emberge_standard.reporting.tables import fold, points, signed, swatch, table, warning

__all__ = ["findings", "score_section"]

# More panels than this are folded away below the means.
_PANELS = 12
Looks = Mapping[str, Look]


def score_section(scores: Scores, looks: Looks) -> Markup:
    """Everything about one evaluation."""
    return tag(
        "div",
        [warning("Not met: ", r.text) for r in scores.requirements if not r.met],
        [tag("p", "Required and met: ", r.text) for r in scores.requirements if r.met],
        _panels(scores, looks),
        _score_table(scores, looks),
        _differences(scores, looks),
        _notes(scores),
    )


def findings(scores: Scores, merged: Sequence[str]) -> list[Child]:
    """What the numbers say, in sentences that claim no more than the intervals allow."""
    said: list[Child] = []
    for on in _headlines(scores):
        best = max(
            (m for m in scores.models if scores.value(m, on) is not None),
            key=lambda m: scores.value(m, on) or 0.0,
            default=None,
        )
        if best is None:
            continue
        words = f" has the highest {_title(on)}, {points(scores.value(best, on))}"
        said.append((tag("b", best), words, _compared(scores.difference(best, on)), "."))
    for model in merged:
        said += _merge_findings(scores, model)
    return said


def _merge_findings(scores: Scores, model: str) -> list[Child]:
    said: list[Child] = []
    for on in _headlines(scores):
        if (value := scores.value(model, on)) is None:
            continue
        words = f" scores {points(value)} {_place(on)}"
        said.append((tag("b", model), words, _compared(scores.difference(model, on)), "."))
    return said


def _headlines(scores: Scores) -> tuple[str, ...]:
    means = scores.mean_columns()
    domains = tuple(m for m in means if m in ("in", "out"))
    return domains or tuple(m for m in means if m == "task") or tuple(scores.columns()[:1])


def _compared(difference: Comparison | None) -> Child:
    if difference is None:
        return ""
    amount = f"; {signed(difference.difference)} against {difference.reference}"
    if difference.interval is None:
        return f"{amount} (no interval is known)"
    low, high = difference.interval
    return (amount, f" [{signed(low)}, {signed(high)}], ", _verdict(difference))


def _verdict(difference: Comparison) -> Markup:
    words = difference.verdict
    return tag("span", words, class_=words if words in ("better", "worse") else None)


def _title(on: str) -> str:
    return MEANS.get(on, on)


def _place(on: str) -> str:
    return {"in": "in-domain", "out": "out-of-domain"}.get(on, f"on {_title(on)}")


def _panels(scores: Scores, looks: Looks) -> Markup:
    tasks = [task.name for task in scores.tasks]
    means = [m for m in scores.mean_columns() if len(tasks) > 1]
    rows = {on: _dots(scores, on, looks) for on in (*means, *tasks)}
    span = 100 * max((high - low for low, high in map(_range, rows.values())), default=0.0)
    charts = {on: _panel(scores, on, rows[on], span) for on in rows}
    folded = len(tasks) > _PANELS
    shown = means if folded else [*means, *tasks]
    return tag(
        "figure",
        tag("div", [charts[on] for on in shown], class_="panels"),
        _panel_caption(scores),
        fold(
            f"All {len(tasks)} tasks",
            tag("div", [charts[on] for on in tasks], class_="panels"),
        )
        if folded
        else None,
    )


def _range(rows: Sequence[Dot]) -> tuple[float, float]:
    low, high = range_of(rows)
    return low / 100, high / 100


def _panel_caption(scores: Scores) -> Markup:
    known = any(scores.intervals.values())
    share = f"{100 * scores.confidence:g} %"
    return tag(
        "figcaption",
        "Scores ×100. All panels cover the same width of scores, each around its own values, so "
        "distances can be compared between panels; none starts at zero. ",
        f"Bars behind the dots are {share} bootstrap intervals over test examples. " if known else None,
        f"The dashed line is {scores.reference}." if scores.reference else None,
    )


def _dots(scores: Scores, on: str, looks: Looks) -> list[Dot]:
    best = scores.best(on)
    rows = []
    for model in scores.models:
        value, interval = scores.value(model, on), scores.interval(model, on)
        low, high = interval if interval is not None else (None, None)
        rows.append(
            Dot(
                model,
                looks.get(model, NEUTRAL),
                *(None if n is None else 100 * n for n in (value, low, high)),
                label=points(value),
                strong=value is not None and value == best,
            )
        )
    return rows


def _panel(scores: Scores, on: str, rows: Sequence[Dot], span: float) -> Markup:
    reference = scores.value(scores.reference, on) if scores.reference else None
    spoken = "; ".join(f"{row.name} {row.label}" for row in rows)
    task = next((t for t in scores.tasks if t.name == on), None)
    return tag(
        "div",
        tag("h4", _title(on), tag("small", _about(task)) if task else None),
        dot_chart(
            rows,
            label=f"{_title(on)}: {spoken}",
            span=span,
            reference=None if reference is None else 100 * reference,
        ),
    )


def _about(task: Task) -> str:
    domain = {"in": "in-domain", "out": "out-of-domain"}.get(task.domain or "", "")
    return ", ".join(word for word in (domain, task.metric) if word)


def _score_table(scores: Scores, looks: Looks) -> Markup:
    columns = scores.columns()
    tasks = {task.name: task for task in scores.tasks}
    head: list[Child] = ["Model"]
    for on in columns:
        about = _about(tasks[on]) if on in tasks else None
        head.append((_title(on), tag("small", about) if about else None))
    rows = [
        [
            _name(model, looks),
            *(_score(scores, model, on) for on in columns),
        ]
        for model in scores.models
    ]
    caption = "Scores ×100; a star marks the highest of each column, below each score its interval"
    return table(head, rows, caption if any(scores.intervals.values()) else caption.partition(",")[0])


def _name(model: str, looks: Looks) -> Markup:
    return tag("th", swatch(looks.get(model, NEUTRAL)), model, scope="row")


def _score(scores: Scores, model: str, on: str) -> Markup:
    value, interval = scores.value(model, on), scores.interval(model, on)
    spread = f"{points(interval[0])} – {points(interval[1])}" if interval else None
    best = value is not None and value == scores.best(on)
    return tag(
        "td",
        points(value),
        tag("small", spread) if spread else None,
        class_="best" if best else None,
    )


def _differences(scores: Scores, looks: Looks) -> Markup | None:
    others = scores.models[1:]
    if not others:
        return None
    columns = scores.columns()
    rows = [
        [_name(model, looks), *(_difference(scores.difference(model, on)) for on in columns)]
        for model in others
    ]
    counted = any(c.interval for c in scores.comparisons)
    return tag(
        "div",
        tag("h3", f"Differences from {scores.reference}"),
        tag("p", _how_compared(scores) if counted else _NOT_COMPARED),
        table(["Model", *(_title(on) for on in columns)], rows, "Differences in points (scores ×100)"),
    )


_NOT_COMPARED = "No intervals are known for these differences, so a small one may well be chance."


def _how_compared(scores: Scores) -> str:
    return (
        f"Intervals are paired bootstraps at {100 * scores.confidence:g} %: both models on the same "
        "drawn test examples. “Better” and “worse” mean that the interval leaves out zero. They tell "
        "how far a difference could be chance of the test examples, not of another training run, and "
        "they are not adjusted for looking at many differences at once."
    )


def _difference(found: Comparison | None) -> Markup:
    if found is None:
        return tag("td", "–")
    if found.interval is None:
        return tag("td", signed(found.difference))
    low, high = found.interval
    style = found.verdict if found.verdict in ("better", "worse") else None
    return tag(
        "td",
        tag("span", signed(found.difference), class_=style),
        tag("small", f"{signed(low)} to {signed(high)}"),
        tag("small", found.verdict),
    )


def _notes(scores: Scores) -> Markup | None:
    notes = [(task.name, task.note) for task in scores.tasks if task.note]
    if not notes:
        return None
    return tag("ul", [tag("li", tag("b", name), ": ", note) for name, note in notes])

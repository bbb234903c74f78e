"""Section of a page on scores: a dot chart per task, tables of scores and differences, requirements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from emberge.evaluating import FEW, MEANS, Comparison, Scores, Task
from emberge.wording import count_noun

from emberge_report.charts.dot_chart import Dot, dot_chart, range_of
from emberge_report.charts.markup import Child, Markup, tag
from emberge_report.charts.svg import NEUTRAL, MarkerStyle
from emberge_report.page.curve_figure import curve_figures
from emberge_report.page.tables import fold, points, signed, swatch, table, warning

# More panels than this are folded away below the means.
_PANELS = 12
Looks = Mapping[str, MarkerStyle]


def score_section(scores: Scores, looks: Looks, merged: Mapping[str, Sequence[str]]) -> Markup:
    """Return the section of one evaluation, arms (groups of seeds) first if models have several."""
    main_scores = scores.pooled or scores
    return tag(
        "div",
        [warning("Not met: ", r.text) for r in scores.requirements if not r.met],
        [tag("p", "Required and met: ", r.text) for r in scores.requirements if r.met],
        _draw_numbers(main_scores, looks),
        curve_figures(scores, merged, looks),
        fold("Each model by itself", _draw_numbers(scores, looks)) if scores.pooled else None,
        _draw_domains(scores),
        _draw_notes(scores),
    )


def _draw_numbers(scores: Scores, looks: Looks) -> Markup:
    parts = (
        _draw_panels(scores, looks),
        _draw_score_table(scores, looks),
        _draw_differences(scores, looks),
    )
    return tag("div", *parts)


def _choose_title(on: str) -> str:
    return MEANS.get(on, on)


def _draw_panels(scores: Scores, looks: Looks) -> Markup:
    tasks = [task.name for task in scores.tasks]
    rows = {on: _list_dots(scores, on, looks) for on in scores.columns()}
    widths = [high - low for low, high in map(range_of, rows.values())]
    charts = {on: _draw_panel(scores, on, rows[on], max(widths, default=0.0)) for on in rows}
    folded = len(tasks) > _PANELS
    shown_charts = [charts[on] for on in rows if not folded or on not in tasks]
    all_panels = tag("div", [charts[on] for on in tasks], class_="panels")
    return tag(
        "figure",
        tag("div", shown_charts, class_="panels"),
        _draw_panel_caption(scores),
        fold(f"All {len(tasks)} tasks", all_panels) if folded else None,
    )


def _draw_panel_caption(scores: Scores) -> Markup:
    has_intervals = any(scores.intervals.values())
    return tag(
        "figcaption",
        f"{_name_kind(scores)}. All panels cover the same width, each around its own values, so "
        "distances can be compared between panels; none starts at zero. ",
        f"Bars behind dots are 95 % {_name_intervals(scores)}. " if has_intervals else None,
        f"The dashed line is {scores.reference}." if scores.reference else None,
    )


def _name_intervals(scores: Scores) -> str:
    if scores.spreads:
        return "intervals over test examples (bootstrap) and seeds (Student’s t)"
    return "bootstrap intervals over test examples"


def _list_dots(scores: Scores, on: str, looks: Looks) -> list[Dot]:
    best = scores.best(on)
    rows = []
    for model in scores.models:
        value, interval = scores.value(model, on), scores.interval(model, on)
        rows.append(
            Dot(
                model,
                looks.get(model, NEUTRAL),
                None if value is None else scores.scale * value,
                scores.scale * interval[0] if interval else None,
                scores.scale * interval[1] if interval else None,
                label=points(value, scores.less),
                strong=value is not None and value == best,
            )
        )
    return rows


def _draw_panel(scores: Scores, on: str, rows: Sequence[Dot], span: float) -> Markup:
    reference = scores.value(scores.reference, on) if scores.reference else None
    spoken = "; ".join(f"{row.name} {row.label}" for row in rows)
    task = scores.task(on)
    return tag(
        "div",
        tag("h4", _choose_title(on), tag("small", _describe_task(task)) if task else None),
        dot_chart(
            rows,
            label=f"{_choose_title(on)}: {spoken}",
            span=span,
            reference=None if reference is None else scores.scale * reference,
        ),
    )


_DOMAINS = {"in": "in-domain", "out": "out-of-domain", "elsewhere": "elsewhere"}


def _describe_task(task: Task) -> str:
    domain = _DOMAINS.get(task.domain or "", "")
    units = count_noun(task.units, task.unit) if task.units and task.unit else ""
    return ", ".join(word for word in (domain, task.metric, units) if word)


def _draw_score_table(scores: Scores, looks: Looks) -> Markup:
    has_intervals = any(scores.intervals.values())
    caption = f"{_name_kind(scores)}; a star marks the {_name_best(scores)}" + (
        ", below a number its interval" if has_intervals else ""
    )
    facts = {_COST: _draw_cost} if scores.costs else {}
    if scores.ranks:
        facts[_RANK] = _draw_rank
    return _draw_grid(scores, scores.models, looks, caption, _draw_score, facts)


def _name_kind(scores: Scores) -> str:
    return "Losses, of which less is better" if scores.less else "Scores ×100"


def _name_best(scores: Scores) -> str:
    return "lowest" if scores.less else "highest"


Cell = Callable[[Scores, str, str], Markup]
Facts = Mapping[str, Callable[[Scores, str], Markup]]


def _draw_grid(
    scores: Scores,
    models: Sequence[str],
    looks: Looks,
    caption: str,
    cell: Cell,
    facts: Facts = MappingProxyType({}),
) -> Markup:
    """Return a table with models as rows and tasks as columns, or transposed if there are many tasks.

    `facts` are further cells of models, by title, before the scores.
    """
    columns = scores.columns()
    if len(columns) > len(MEANS) + FEW:
        head = ["Task", *models]
        turned = [
            [
                tag("th", *_draw_heading(scores, on), scope="row"),
                *(cell(scores, m, on) for m in models),
            ]
            for on in columns
        ]
        turned[:0] = [
            [tag("th", title, scope="row"), *(fact(scores, m) for m in models)]
            for title, fact in facts.items()
        ]
        return table(head, turned, caption)
    rows = [
        [
            tag("th", swatch(looks.get(model, NEUTRAL)), model, scope="row"),
            *(fact(scores, model) for fact in facts.values()),
            *(cell(scores, model, on) for on in columns),
        ]
        for model in models
    ]
    titles = (_draw_heading(scores, on) for on in columns)
    return table(["Model", *facts, *titles], rows, caption)


_COST = "Training cost"
_RANK = "Normalised rank, 0 is best"


def _draw_cost(scores: Scores, model: str) -> Markup:
    """Return a cell with the cost in trainings on all rows; a model from outside the run has none."""
    cost = scores.costs.get(model)
    return tag("td", "–" if cost is None else f"{cost.times:.3g}")


def _draw_rank(scores: Scores, model: str) -> Markup:
    ranks = scores.ranks
    return tag("td", f"{ranks[model]:.2f}" if model in ranks else "–")


def _draw_heading(scores: Scores, on: str) -> list[Child]:
    task = scores.task(on)
    about = _describe_task(task) if task else ""
    return [_choose_title(on), tag("small", about) if about else None]


def _draw_score(scores: Scores, model: str, on: str) -> Markup:
    value, interval = scores.value(model, on), scores.interval(model, on)
    interval_text = " – ".join(points(end, scores.less) for end in interval) if interval else None
    spread = scores.spread(model, on)
    best = value is not None and value == scores.best(on)
    return tag(
        "td",
        tag("span", "★ ", class_="star", aria_label=_name_best(scores)) if best else None,
        points(value, scores.less),
        tag("small", f"± {points(spread, scores.less)}") if spread is not None else None,
        tag("small", interval_text) if interval_text else None,
        class_="best" if best else None,
    )


def _draw_differences(scores: Scores, looks: Looks) -> Markup | None:
    other_models = scores.models[1:]
    if not other_models:
        return None
    has_intervals = any(c.interval for c in scores.comparisons)
    of = "losses, of which less is better" if scores.less else "points (scores ×100)"
    parts: list[Child] = []
    for reference in (scores.reference, *scores.further_references):
        models = other_models if not parts else scores.compared_with(str(reference))
        cell = partial(_draw_difference, reference=reference)
        explanation = _explain_intervals(scores) if has_intervals else _NOT_COMPARED
        parts += [
            tag("h3", f"Differences from {reference}"),
            tag("p", explanation) if not parts else None,
            _draw_grid(scores, models, looks, f"Differences in {of}", cell),
        ]
    return tag("div", *parts)


_NOT_COMPARED = "No intervals are known for these differences, so a small one may well be chance."


def _explain_intervals(scores: Scores) -> str:
    verdicts = (
        "“Better” and “worse” mean that the interval leaves out zero. They are not adjusted for looking at "
        "many differences at once."
    )
    if scores.spreads:
        return (
            f"Differences of means over seeds. Intervals at 95 % cover the test "
            "examples, by a bootstrap of both on the same ones, and other seeds, by Student’s t of the "
            "differences seed by seed, which are given where both have the same seeds. An arm of one model "
            f"is that model alone. {verdicts}"
        )
    return (
        f"Intervals are paired bootstraps at 95 %: both models on the same "
        "drawn test examples. They show how far a difference could be chance of the test examples, not of "
        f"another training run. {verdicts}"
    )


def _draw_difference(scores: Scores, model: str, on: str, reference: str | None = None) -> Markup:
    return _draw_comparison(scores.difference(model, on, reference))


def _draw_comparison(difference: Comparison | None) -> Markup:
    if difference is None:
        return tag("td", "–")
    if difference.interval is None:
        return tag("td", signed(difference.difference, difference.less))
    low, high = difference.interval
    style = difference.verdict if difference.verdict in ("better", "worse") else None
    return tag(
        "td",
        tag("span", signed(difference.difference, difference.less), class_=style),
        tag("small", f"{signed(low, difference.less)} to {signed(high, difference.less)}"),
        tag("small", _list_by_seed(difference), class_="wrap") if difference.by_seed else None,
        tag("small", difference.verdict),
    )


def _list_by_seed(difference: Comparison) -> str:
    values = (signed(value, difference.less) for value in (difference.by_seed or {}).values())
    return f"seeds {', '.join(values)}"


def _draw_domains(scores: Scores) -> Markup | None:
    """Return the lists of tasks in domain and out of domain; None if domains are unknown."""
    shown = [
        tag("p", tag("b", f"{title} ({len(names)}): "), ", ".join(names))
        for title, names in scores.tasks_by_domain().items()
    ]
    return tag("div", shown) if shown else None


def _draw_notes(scores: Scores) -> Markup | None:
    notes = [(task.name, task.note) for task in scores.tasks if task.note]
    if not notes:
        return None
    return tag("ul", [tag("li", tag("b", name), ": ", note) for name, note in notes])

"""Scores as Markdown, the file `scores.md`: tables with scores × 100 or losses, notes and verdicts."""

from __future__ import annotations

from collections.abc import Iterator

from emberge.wording import Markdown, format_markdown_row, format_markdown_table, to_markdown

from emberge_evaluate.score_table import (
    SINGLE_RUNS,
    ScoreCell,
    ScoreRow,
    ScoreTable,
    build_difference_tables,
    build_table,
)
from emberge_evaluate.scores import Scores

# Largest number of models whose means are shown with intervals.
_FEW_MODELS = 6


def draw_scores(scores: Scores) -> str:
    """Return verdicts, differences, scores and notes as Markdown, with arms first if there are seeds."""
    shown = scores.pooled or scores
    title = "Losses (less is better)" if scores.less_is_better else "Scores ×100"
    title = title if scores.pooled is None else "Mean over seeds ± standard deviation"
    verdicts = [
        f"- {'met' if verdict.met else 'NOT MET'}: {to_markdown(verdict.text)}"
        for verdict in sorted(scores.requirements, key=lambda one: one.met)
    ]
    lines = [*verdicts, ""] if verdicts else []
    lines += [*_draw_differences(shown), f"{title}:", "", *_draw_table(shown, build_table(shown))]
    if scores.pooled is not None:
        lines += ["", "Each model:", "", *_draw_table(scores, build_table(scores))]
    if len(scores.models) > _FEW_MODELS and build_table(scores).has_intervals:
        reason = f"Intervals of means are shown for at most {_FEW_MODELS} models"
        lines += ["", f"{reason}; scores.json has those of all."]
    return "\n".join([*lines, *_list_domains(scores), *_list_notes(scores)]) + "\n"


def _draw_table(scores: Scores, table: ScoreTable) -> Iterator[str]:
    """Yield the lines of a table, with intervals of differences, and of means if there are few models."""
    has_intervals = not scores.members and len(table.models) <= _FEW_MODELS
    titles = [_format_seed_count(scores, name) if scores.members else name for name in table.models]
    yield from format_markdown_table(["task", *titles], (), "l" + "r" * len(titles))
    for row in (*table.rows, *table.facts):
        shows_interval = row.quantity == "difference" or (has_intervals and row.is_headline)
        yield format_markdown_row([_write_title(row), *_write_cells(row, table, shows_interval)])


def _format_seed_count(pooled: Scores, arm: str) -> str:
    count = len(pooled.members[arm])
    return f"{arm} ({'1 model' if count == 1 else f'{count} seeds'})"


def _write_title(row: ScoreRow) -> str:
    if row.task is None:
        return Markdown(f"*{to_markdown(row.title)}*")
    domain = f", {row.task.domain}" if row.task.domain else ""
    return f"{row.title} ({row.task.metric}{domain})"


def _write_cells(row: ScoreRow, table: ScoreTable, shows_interval: bool) -> Iterator[Markdown]:
    """Yield the cells of a row; the best numbers are bold."""
    for cell in row.cells.values():
        yield _write_cell(cell, row, table, shows_interval=shows_interval)


def _write_cell(
    cell: ScoreCell, row: ScoreRow, table: ScoreTable, *, shows_interval: bool
) -> Markdown:
    """Return a number with its spread, its interval and its values for each seed, as far as it has them."""

    def format_number(value: float | None) -> str:
        return _format_number(value, row, table)

    number = format_number(cell.value)
    parts = [f"**{number}**" if cell.is_best else number]
    if cell.spread is not None:
        parts.append(f"± {format_number(cell.spread)}")
    if shows_interval and cell.interval is not None:
        parts.append(f"[{', '.join(map(format_number, cell.interval))}]")
    if cell.by_seed:
        parts.append(f"({', '.join(map(format_number, cell.by_seed))})")
    return Markdown(" ".join(parts))


def _format_number(value: float | None, row: ScoreRow, table: ScoreTable) -> str:
    """Return a score or difference in points or as a loss; costs are no shares."""
    if value is None:
        return "–"
    if row.quantity == "cost":
        return f"{value:.3g}"
    sign = "+" if row.quantity == "difference" else ""
    text = f"{value:{sign}.3f}" if table.less_is_better else f"{100 * value:{sign}.1f}"
    if sign and float(text) == 0 and not table.less_is_better:
        text = f"{100 * value:{sign}.2f}"  # an end near zero says on which side it lies
    return text.lstrip("+-") if float(text) == 0 else text


def _draw_differences(scores: Scores) -> Iterator[str]:
    """Yield the tables of differences, each with a sentence on its unit and its intervals."""
    unit = "of losses, of which less is better" if scores.less_is_better else "in points"
    words = "a paired bootstrap"
    if scores.members:
        words = "a bootstrap of test examples and Student's t over seeds, paired where both have the same"
        words += " (each seed in parentheses)"
    tables = [*build_difference_tables(scores)]
    for table in tables:
        yield f"Difference from {to_markdown(table.reference or '')} {unit}, with 95% intervals of {words}:"
        yield from ("", *_draw_table(scores, table), "")
    if any(table.has_intervals for table in tables):
        bold = "Below, a row's best number is bold; the differences say what is more than chance."
        yield from (bold if scores.members else f"{SINGLE_RUNS} {bold}", "")


def _list_domains(scores: Scores) -> Iterator[str]:
    """Yield a line with the tasks of each domain, after an empty one."""
    for title, names in scores.group_tasks().items():
        yield ""
        yield f"{title} ({len(names)}): {to_markdown(', '.join(names))}."


def _list_notes(scores: Scores) -> list[str]:
    """Return the lines with notes on tasks."""
    lines = [
        f"- {to_markdown(task.name)}: {to_markdown(task.note)}"
        for task in scores.tasks
        if task.note
    ]
    return ["", *lines] if lines else []

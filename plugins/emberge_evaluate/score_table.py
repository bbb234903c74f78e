"""Markdown table of an evaluation: a row for each task, a column for each model, scores × 100 or losses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from emberge.wording import Markdown, prose, table_lines, table_row

from emberge_evaluate.scores import DOMAINS, FEW, Comparison, Scores
from emberge_evaluate.task_groups import read_group_kind

_DOMAINS = {domain: title.lower() for domain, title in DOMAINS.items()}
MEANS = {"task": "mean over tasks", "type": "mean over kinds of task", **_DOMAINS}
# Means that differences are shown on, with their titles.
GROUPS = {"task": "all tasks", "type": "kinds of task", **_DOMAINS}


def draw_table(scores: Scores) -> str:
    """Return scores, means, differences and costs as Markdown, with arms first if there are seeds."""
    lines: list[str] = []
    if scores.pooled is not None:
        words = "a bootstrap of test examples and Student's t over seeds, paired where both have the same"
        lines += ["Mean over seeds ± standard deviation:", "", *_draw_scores(scores.pooled)]
        lines += [*_describe_differences(scores.pooled, words), "", "Each model:", ""]
    lines += _draw_scores(scores)
    if scores.pooled is None:
        lines += _describe_differences(scores, "a paired bootstrap")
    return "\n".join([*lines, *_describe_domains(scores), *_note_lines(scores)]) + "\n"


def _draw_scores(scores: Scores) -> Iterator[str]:
    """Yield the table of models, with intervals of means if they are few, or of arms with their spreads."""
    models = scores.models
    titles = [
        f"{name} ({_count_models(scores, name)})" if scores.members else name for name in models
    ]
    yield from _draw_table_head(["task", *titles])
    for task in scores.tasks:
        domain = f", {task.domain}" if task.domain else ""
        label = f"{task.name} ({task.metric}{domain})"
        values = [scores.values[model][task.name] for model in models]
        yield _draw_table_row(label, values, scores, _note_spreads(scores, task.name))
    for mean, label in _find_new_means(scores):
        values = [scores.means[model][mean] for model in models]
        notes = _note_spreads(scores, mean)
        if not scores.members and len(models) <= FEW:
            intervals = [scores.interval(model, mean) for model in models]
            notes = [_show_interval(*pair, scores) if pair else "" for pair in intervals]
        yield _draw_table_row(_make_italic(label), values, scores, notes)
    yield from _draw_forgetting(scores)
    yield from _draw_ranks(scores)
    if scores.costs:
        costs = [scores.costs.get(model) for model in models]
        cells = ["–" if cost is None else f"{cost.times:.3g}" for cost in costs]
        yield table_row([_make_italic("training cost"), *cells])


def _count_models(pooled: Scores, arm: str) -> str:
    count = len(pooled.members[arm])
    return "1 model" if count == 1 else f"{count} seeds"


def _note_spreads(scores: Scores, on: str) -> list[str]:
    """Return a note on each arm's spread over seeds."""
    spreads = [scores.spread(model, on) for model in scores.models]
    return [f"± {_format_number(one, scores)}" if one is not None else "" for one in spreads]


def _find_new_means(scores: Scores) -> Iterator[tuple[str, str]]:
    """Yield (mean, title) of each mean that differs from every task's scores and from the means before it."""
    kinds = {mean: f"mean of {title}" for mean, title in _find_kind_means(scores).items()}
    for mean, label in (kinds | MEANS).items():
        is_complete = all(mean in scores.means[model] for model in scores.models)
        if is_complete and not _repeats_another(mean, scores):
            yield mean, label


def _find_kind_means(scores: Scores) -> dict[str, str]:
    """Map the title of each mean over one kind of task to its kind and number of tasks."""
    counts = Counter(task.kind for task in scores.tasks)
    means = dict.fromkeys(mean for model in scores.models for mean in scores.means[model])
    return {
        m: f"{kind} ({counts[kind]})" for m in means if (kind := read_group_kind(m)) is not None
    }


def _repeats_another(mean: str, scores: Scores) -> bool:
    """Return whether a mean repeats one task's scores, a kind's mean or the mean over all tasks."""
    if (kind := read_group_kind(mean)) is not None:
        return sum(task.kind == kind for task in scores.tasks) == 1
    of_all = mean in DOMAINS and all(task.domain == mean for task in scores.tasks)
    return of_all or not scores.averages_several(mean)


def _draw_table_head(names: Sequence[str]) -> list[str]:
    return table_lines(names, (), "l" + "r" * (len(names) - 1))


def _make_italic(label: str) -> Markdown:
    return Markdown(f"*{prose(label)}*")


def _draw_table_row(
    label: str, values: Sequence[float], scores: Scores, notes: Sequence[str] = ()
) -> str:
    texts = [_format_number(value, scores) for value in values]
    best = (min if scores.less else max)(texts, key=float)
    differ = len(set(texts)) > 1  # where all are equal none is best
    cells = [_bold(text) if differ and text == best else text for text in texts]
    if notes:
        pairs = zip(cells, notes, strict=True)
        cells = [Markdown(" ".join(filter(None, pair))) for pair in pairs]
    return table_row([label, *cells])


def _format_number(value: float, scores: Scores, sign: str = "") -> str:
    """Return a score in points, or a loss."""
    return f"{scores.scale * value:{sign}.{3 if scores.less else 1}f}"


def _show_interval(low: float, high: float, scores: Scores, sign: str = "") -> str:
    return f"[{_format_number(low, scores, sign)}, {_format_number(high, scores, sign)}]"


def _draw_forgetting(scores: Scores) -> Iterator[str]:
    """Yield the row with each model's forgetting (less is better), if it is known."""
    if not scores.forgetting:
        return
    cells = []
    for forgotten in map(scores.forgotten, scores.models):
        text = "–" if forgotten is None else _format_number(forgotten.mean, scores, "+")
        if forgotten is not None and forgotten.interval is not None:
            text += f" {_show_interval(*forgotten.interval, scores, '+')}"
        cells.append(Markdown(text))
    group_title = MEANS[scores.forgetting[0].on]
    yield table_row([_make_italic(f"forgetting, {group_title} (less is better)"), *cells])


def _draw_ranks(scores: Scores) -> Iterator[str]:
    """Yield the row of normalised ranks (less is better), if there are any."""
    if ranks := scores.ranks:
        cells = [f"{ranks[model]:.2f}" if model in ranks else "–" for model in scores.models]
        best = f"{min(ranks.values()):.2f}"
        marked = [_bold(cell) if cell == best and len(set(cells)) > 1 else cell for cell in cells]
        yield table_row([_make_italic("normalised rank (0 is best)"), *marked])


def _describe_differences(scores: Scores, words: str) -> list[str]:
    """Return the lines with differences from the first model or arm, then those of further pairs."""
    references = [*filter(None, [scores.reference]), *scores.further_references]
    return [line for name in references for line in _describe_differences_from(name, scores, words)]


def _describe_differences_from(reference: str, scores: Scores, words: str) -> list[str]:
    """Return the lines with each difference from one model or arm, and its interval."""
    groups = GROUPS | _find_kind_means(scores)
    shown_means = [mean for mean in groups if mean == "task" or not _repeats_another(mean, scores)]
    shown_comparisons = [
        comparison
        for comparison in scores.comparisons
        if comparison.on in shown_means and comparison.reference == reference
    ]
    if not shown_comparisons:
        return []
    columns = dict.fromkeys(comparison.on for comparison in shown_comparisons)
    first = shown_comparisons[0]
    unit = "of losses, of which less is better" if scores.less else "in points"
    lines = [
        "",
        f"Difference from {prose(first.reference)} {unit}, with 95% intervals of {words}:",
        "",
        *_draw_table_head(["model", *(groups[mean] for mean in columns)]),
    ]
    for model in dict.fromkeys(comparison.model for comparison in shown_comparisons):
        cells = [
            _show_difference(comparison, scores)
            for comparison in shown_comparisons
            if comparison.model == model
        ]
        lines.append(table_row([model, *cells]))
    return lines


def _show_difference(comparison: Comparison, scores: Scores) -> Markdown:
    text = _format_number(comparison.difference, scores, "+")
    if comparison.interval is not None:
        text += " " + _show_interval(*comparison.interval, scores, "+")
    if comparison.by_seed:
        seeds = (_format_number(value, scores, "+") for value in comparison.by_seed.values())
        text += f" ({', '.join(seeds)})"
    return Markdown(text)


def _describe_domains(scores: Scores) -> Iterator[str]:
    """Yield the line that lists the tasks in domain."""
    for title, names in scores.tasks_by_domain().items():
        yield ""
        yield f"{title} ({len(names)}): {prose(', '.join(names))}."


def _note_lines(scores: Scores) -> list[str]:
    lines = [f"- {prose(task.name)}: {prose(task.note)}" for task in scores.tasks if task.note]
    for verdict in scores.requirements:
        lines.append(f"- {'met' if verdict.met else 'NOT MET'}: {prose(verdict.text)}")
    return ["", *lines] if lines else []


def _bold(text: str) -> Markdown:
    """Return plain text in bold."""
    return Markdown(f"**{prose(text)}**")

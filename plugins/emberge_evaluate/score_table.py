"""Table of an evaluation for people, as Markdown: tasks down, models across, scores × 100 or losses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from emberge.evaluating import (
    DOMAINS,
    FEW,
    Comparison,
    GainKept,
    Scores,
    Task,
    TrainingCost,
    kind_of_group,
)
from emberge.wording import Markdown, bold, prose, table_lines, table_row

from emberge_evaluate.token_loss import NATS_PER_TOKEN

_DOMAINS = {domain: title.lower() for domain, title in DOMAINS.items()}
MEANS = {
    "task": "mean over tasks",
    "type": "mean over kinds of task",
    **_DOMAINS,
}
# Means that differences are shown on, with their titles.
GROUPS = {
    "task": "all tasks",
    "type": "kinds of task",
    **_DOMAINS,
}


def table(scores: Scores) -> str:
    """Return scores, means, differences and costs as Markdown, with arms first if there are seeds."""
    lines: list[str] = []
    if scores.pooled is not None:
        lines += [*_arm_lines(scores.pooled), "Each model:", ""]
    lines += _model_table(scores)
    if scores.pooled is None:
        lines += [*_difference_lines(scores, "a paired bootstrap"), *_linear_lines(scores)]
    lines += _gain_lines(scores)
    return "\n".join([*lines, *_domain_lines(scores), *_note_lines(scores)]) + "\n"


def _model_table(scores: Scores) -> Iterator[str]:
    models = scores.models
    yield from _table_head(["task", *models])
    for task in scores.tasks:
        label = f"{task.name} ({_metric_name(task)})"
        yield _table_row(label, [scores.values[model][task.name] for model in models], scores)
    yield from _perplexity_rows(scores)
    for mean, label in _new_means(scores):
        around = [scores.interval(model, mean) for model in models]
        notes = [_show_interval(*pair, scores) if pair else "" for pair in around]
        values = [scores.means[model][mean] for model in models]
        yield _table_row(_make_italic(label), values, scores, notes if len(models) <= FEW else ())
    yield from _forgetting_row(scores)
    yield from _rank_row(scores)
    yield from _cost_row([scores.costs.get(model) for model in models])


def _arm_lines(pooled: Scores) -> Iterator[str]:
    """Yield lines on means and spreads over seeds, and on differences between arms."""
    arms = pooled.models
    yield from ("Mean over seeds ± standard deviation:", "")
    yield from _table_head(["task", *(f"{arm} ({_count_models(pooled, arm)})" for arm in arms)])
    for task in pooled.tasks:
        yield _estimate_row(task.name, task.name, pooled)
    for mean, label in _new_means(pooled):
        yield _estimate_row(_make_italic(label), mean, pooled)
    yield from _forgetting_row(pooled)
    yield from _rank_row(pooled)
    yield from _cost_row([pooled.costs.get(arm) for arm in arms])
    words = (
        "a bootstrap of test examples and Student's t over seeds, paired where both have the same"
    )
    yield from _difference_lines(pooled, words)
    yield from _linear_lines(pooled)
    yield ""


def _count_models(pooled: Scores, arm: str) -> str:
    count = len(pooled.members[arm])
    return "1 model" if count == 1 else f"{count} seeds"


def _estimate_row(label: str, on: str, pooled: Scores) -> str:
    spreads = [pooled.spread(arm, on) for arm in pooled.models]
    values = [pooled.values[arm].get(on, pooled.means[arm].get(on, 0.0)) for arm in pooled.models]
    notes = [f"± {_number(spread, pooled)}" if spread is not None else "" for spread in spreads]
    return _table_row(label, values, pooled, notes)


def _perplexity_rows(scores: Scores) -> Iterator[str]:
    """Yield the perplexity on each task with a known loss per token."""
    for task in scores.tasks:
        if task.metric == NATS_PER_TOKEN:
            values = [scores.values[model][task.name] for model in scores.models]
            cells = [f"{math.exp(value):.4g}" if value < 700 else "inf" for value in values]
            yield table_row([f"{task.name} (perplexity)", *cells])


def _new_means(scores: Scores) -> Iterator[tuple[str, str]]:
    """Yield the means of all models that repeat neither one task's scores nor another mean."""
    kinds = {mean: f"mean of {title}" for mean, title in _kind_means(scores).items()}
    for mean, label in (kinds | MEANS).items():
        known = all(mean in scores.means[model] for model in scores.models)
        if known and not _repeats_another(mean, scores):
            yield mean, label


def _kind_means(scores: Scores) -> dict[str, str]:
    """Return the means over one kind of task, each with the kind and its number of tasks as title."""
    counts = Counter(task.kind for task in scores.tasks)
    means = dict.fromkeys(mean for model in scores.models for mean in scores.means[model])
    return {m: f"{kind} ({counts[kind]})" for m in means if (kind := kind_of_group(m)) is not None}


def _repeats_another(mean: str, scores: Scores) -> bool:
    """Return whether a mean repeats one task's scores, a kind's mean or the mean over all tasks."""
    tasks = scores.tasks
    if (kind := kind_of_group(mean)) is not None:
        return sum(task.kind == kind for task in tasks) == 1
    if mean == "type":
        return len({task.kind for task in tasks}) == 1
    if mean == "task":
        return len(tasks) == 1
    return sum(task.domain == mean for task in tasks) in (1, len(tasks))


def _metric_name(task: Task) -> str:
    domain = f", {task.domain}" if task.domain else ""
    return f"{task.metric}{domain}"


def _table_head(names: Sequence[str]) -> list[str]:
    return table_lines(names, (), "l" + "r" * (len(names) - 1))


def _make_italic(label: str) -> Markdown:
    return Markdown(f"*{prose(label)}*")


def _table_row(
    label: str, values: Sequence[float], scores: Scores, notes: Sequence[str] = ()
) -> str:
    texts = [_number(value, scores) for value in values]
    made = [text for text, m in zip(texts, scores.models, strict=True) if m in scores.made]
    best = (min if scores.less else max)(made, key=float)
    differ = len(set(made)) > 1  # where all are equal none is best
    cells = [
        bold(text) if differ and text == best and model in scores.made else text
        for text, model in zip(texts, scores.models, strict=True)
    ]
    if notes:
        pairs = zip(cells, notes, strict=True)
        cells = [Markdown(" ".join(filter(None, pair))) for pair in pairs]
    return table_row([label, *cells])


def _number(value: float, scores: Scores, sign: str = "") -> str:
    """Return a score in points, or a loss."""
    return f"{scores.scale * value:{sign}.{3 if scores.less else 1}f}"


def _show_interval(low: float, high: float, scores: Scores, sign: str = "") -> str:
    return f"[{_number(low, scores, sign)}, {_number(high, scores, sign)}]"


def _forgetting_row(scores: Scores) -> Iterator[str]:
    """Yield the row of each model's forgetting of its base (less is better), if it is known."""
    if not scores.forgetting:
        return
    cells = []
    for lost in map(scores.forgotten, scores.models):
        around = f" {_show_interval(*lost.interval, scores, '+')}" if lost and lost.interval else ""
        cells.append(Markdown(f"{_number(lost.mean, scores, '+')}{around}" if lost else "–"))
    where = MEANS[scores.forgetting[0].on]
    yield table_row([_make_italic(f"forgetting, {where} (less is better)"), *cells])


def _rank_row(scores: Scores) -> Iterator[str]:
    """Yield the row of normalised ranks (less is better), if there are any."""
    if ranks := scores.ranks:
        cells = [f"{ranks[model]:.2f}" if model in ranks else "–" for model in scores.models]
        best = f"{min(ranks.values()):.2f}"
        marked = [bold(cell) if cell == best and len(set(cells)) > 1 else cell for cell in cells]
        yield table_row([_make_italic("normalised rank (0 is best)"), *marked])


def _cost_row(costs: Sequence[TrainingCost | None]) -> Iterator[str]:
    """Yield the row of training costs, a training on all rows being 1 (arXiv:2602.05787), if any is known."""
    if any(costs):
        cells = ["–" if cost is None else f"{cost.times:.3g}" for cost in costs]
        yield table_row([_make_italic("training cost"), *cells])


def _difference_lines(scores: Scores, words: str) -> list[str]:
    """Return lines on how far each model or arm is from the first, with their intervals."""
    groups = GROUPS | _kind_means(scores)
    shown = [mean for mean in groups if mean == "task" or not _repeats_another(mean, scores)]
    found = [one for one in scores.comparisons if one.on in shown]
    if not found:
        return []
    columns = dict.fromkeys(one.on for one in found)
    unit = "of losses, of which less is better" if scores.less else "in points"
    lines = [
        "",
        f"Difference from {prose(found[0].reference)} {unit}, with {found[0].confidence:.0%} intervals "
        f"of {words}:",
        "",
        *_table_head(["model", *(groups[mean] for mean in columns)]),
    ]
    for model in dict.fromkeys(one.model for one in found):
        cells = [_show_difference(one, scores) for one in found if one.model == model]
        lines.append(table_row([model, *cells]))
    return lines


def _linear_lines(scores: Scores) -> Iterator[str]:
    """Yield which merges differ from the linear one of the same members by more than noise."""
    for linear in dict.fromkeys(one.reference for one in scores.against_linear):
        mine = [one for one in scores.against_linear if one.reference == linear]
        merges = list(dict.fromkeys(one.model for one in mine))
        clear = [one for one in mine if one.verdict in ("better", "worse") and one.on in GROUPS]
        yield ""
        if not clear:
            known = any(one.interval for one in mine)
            why = "by more than noise" if known else "as far as is known: there are no intervals"
            named = prose(", ".join(merges))
            yield f"No merge of these differs from linear ({prose(linear)}) {why}: {named}."
            continue
        shown = (
            f"{prose(one.model)} {GROUPS[one.on]} {_show_difference(one, scores)}" for one in clear
        )
        yield f"By more than noise these differ from linear ({prose(linear)}): {'; '.join(shown)}."


def _show_difference(found: Comparison, scores: Scores) -> Markdown:
    text = _number(found.difference, scores, "+")
    if found.interval is not None:
        text += " " + _show_interval(*found.interval, scores, "+")
    if found.by_seed:
        seeds = (_number(value, scores, "+") for value in found.by_seed.values())
        text += f" ({', '.join(seeds)})"
    return Markdown(text)


def _gain_lines(scores: Scores) -> Iterator[str]:
    """Yield lines on the share of a new model's gain that each index keeps, over tasks and on each."""
    names = {task.name for task in scores.tasks}
    found = [one for one in scores.gains_kept if one.on == "task" or one.on in names]
    if len(names) == 1:
        found = [one for one in found if one.on in names]
    if not found:
        return
    yield ""
    yield (
        "Share of the gain from the old model to the new one that an index keeps, "
        f"(model on index - old) / (new - old), with {found[0].confidence:.0%} intervals of a paired "
        "bootstrap; where the gain may be none it has no share:"
    )
    yield ""
    columns = list(dict.fromkeys(one.on for one in found))
    yield from _table_head(["model", *("all tasks" if on == "task" else on for on in columns)])
    for model in dict.fromkeys(one.model for one in found):
        cells = [_show_gain(one, scores) for one in found if one.model == model]
        yield table_row([model, *cells])


def _show_gain(found: GainKept, scores: Scores) -> Markdown:
    if found.share is not None:
        low, high = (
            ("?" if end is None else f"{100 * end:.0f}") for end in (found.low, found.high)
        )
        return Markdown(f"{100 * found.share:.0f} % [{low}, {high}]")
    text = f"no clear gain: {_number(found.gain, scores, '+')}"
    if found.gain_low is None or found.gain_high is None:
        return Markdown(text)
    return Markdown(f"{text} {_show_interval(found.gain_low, found.gain_high, scores, '+')}")


def _domain_lines(scores: Scores) -> Iterator[str]:
    """Yield which tasks count as in domain, as no reader can know."""
    for title, names in scores.tasks_by_domain().items():
        yield ""
        yield f"{title} ({len(names)}): {prose(', '.join(names))}."


def _note_lines(scores: Scores) -> list[str]:
    lines = [f"- {prose(task.name)}: {prose(task.note)}" for task in scores.tasks if task.note]
    for verdict in scores.requirements:
        lines.append(f"- {'met' if verdict.met else 'NOT MET'}: {prose(verdict.text)}")
    return ["", *lines] if lines else []

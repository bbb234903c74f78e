"""Sentences that sum up an evaluation's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from emberge.wording import count_noun
from emberge_evaluate import TITLE_BY_DOMAIN, TITLE_BY_MEAN, Comparison, Estimate, Scores
from markupsafe import Markup

from emberge_report.formats import format_difference, format_points

# Words for the tasks that forgetting is measured on.
DOMAIN_PHRASES = {"elsewhere": "of domains that no training had", "out": "out of domain"}

# Words for two models by the verdict on their difference.
_PAIR_PHRASES = {
    "better": "<b>{}</b> is better than <b>{}</b>",
    "worse": "<b>{}</b> is worse than <b>{}</b>",
    "no clear difference": "<b>{}</b> and <b>{}</b> cannot be told apart",
    "unknown": "<b>{}</b> against <b>{}</b>, without an interval",
}


def write_conclusions(scores: Scores, merges: Sequence[str]) -> list[Markup]:
    """Return sentences on the scores that claim no more than the intervals allow, on compared pairs first.

    `merges` are the names of merged models. Models that differ only in seed are treated as one.
    """
    if (pooled := scores.pooled) is not None:
        merges = [arm for arm in pooled.models if {*pooled.list_members(arm)} & {*merges}]
        scores = pooled
    headlines = _list_headlines(scores)
    lines = [
        _describe_pair([x for h in headlines if (x := scores.find_difference(model, h, reference))])
        for reference in scores.further_references
        for model in scores.list_compared(reference)
    ]
    for task_or_mean in headlines:
        known = {model: scores.find_value(model, task_or_mean) for model in scores.models}
        values = {model: value for model, value in known.items() if value is not None}
        if not values:
            continue
        best, *behind = sorted(values, key=values.__getitem__, reverse=not scores.less_is_better)
        verb = " has the least loss," if scores.less_is_better else " scores highest,"
        others = [model for model in merges if model in behind]
        if best == scores.reference:  # none is ahead of it
            others = others or behind[:1]
        parts = [_describe_model(scores, best, task_or_mean, verb)]
        if equals := ", ".join(_list_equals(scores, best, task_or_mean)):
            parts[0] += Markup(", and cannot be told apart from {}").format(equals)
        parts += [_describe_model(scores, m, task_or_mean, " scores") for m in others]
        lines.append(Markup("{}: {}.").format(_name_row(task_or_mean), Markup("; ").join(parts)))
    return [*filter(None, lines), *([_describe_forgetting(scores)] if scores.forgetting else ())]


def _describe_pair(differences: Sequence[Comparison]) -> Markup:
    """Return a sentence on two models that the recipe compares: their differences, by verdict."""
    parts = []
    for verdict, group in groupby(differences, lambda difference: difference.verdict):
        phrase = _PAIR_PHRASES[verdict]
        amounts = [
            f"{format_difference(x.difference, x.less_is_better, x.interval)} {_name_place(x)}"
            for x in group
        ]
        names = (differences[0].model, differences[0].reference)
        parts.append(Markup(phrase).format(*names) + ": " + ", ".join(amounts))
    return Markup("{}.").format(Markup("; ").join(parts)) if parts else Markup()


def _name_place(difference: Comparison) -> str:
    name = difference.task_or_mean
    return TITLE_BY_DOMAIN[name].lower() if name in TITLE_BY_DOMAIN else f"on {_name_row(name)}"


def _list_equals(scores: Scores, best: str, task_or_mean: str) -> list[str]:
    """Return the models other than the first that a comparison cannot tell apart from the best one."""
    return [
        other
        for one in scores.comparisons
        if one.task_or_mean == task_or_mean and one.verdict == "no clear difference"
        for model, other in ((one.model, one.reference), (one.reference, one.model))
        if model == best and scores.reference not in (model, other)
    ]


def write_verdicts(scores: Scores) -> list[Markup]:
    """Return a sentence on each requirement, those that are not met first."""
    verdicts = sorted(scores.requirements, key=lambda one: one.met)
    words = {True: Markup("Required and met: {}"), False: Markup("<b>Not met: {}</b>")}
    return [words[one.met].format(one.text) for one in verdicts]


def _list_headlines(scores: Scores) -> tuple[str, ...]:
    """Return the means that sum up a run: one for each domain, else the first mean, else the first task."""
    domains = tuple(mean for mean in scores.known_means if mean in TITLE_BY_DOMAIN)
    return domains or scores.known_means[:1] or tuple(task.name for task in scores.tasks[:1])


def _describe_forgetting(scores: Scores) -> Markup:
    """Return a sentence on models' forgetting of their base on tasks outside the training domains."""
    leading = scores.forgetting[0]
    count = sum(task.domain == leading.task_or_mean for task in scores.tasks)
    parts = [
        Markup("<b>{}</b> {}").format(model, describe_forgotten(forgotten, scores.less_is_better))
        for model in (comparison.reference for comparison in scores.forgetting)
        if (forgotten := scores.find_forgotten(model)) is not None
    ]
    tasks_text = f"{count_noun(count, 'task')} {DOMAIN_PHRASES[leading.task_or_mean]}"
    group_text = f"on {tasks_text}, against {leading.model}"
    return Markup("Forgetting, {}: {}.").format(group_text, Markup("; ").join(parts))


def describe_forgotten(forgotten: Estimate, less_is_better: bool) -> str:
    """Return a phrase on how much a model forgot that claims no more than the interval allows."""
    verb = "loses" if forgotten.mean > 0 else "gains"
    text = f"{verb} {format_points(abs(forgotten.mean), less_is_better)}"
    if forgotten.interval is None:
        return f"{text}, no interval known"
    low, high = forgotten.interval if forgotten.mean > 0 else [-x for x in forgotten.interval[::-1]]
    if low > 0:
        return (
            f"{text} [{format_points(low, less_is_better)}, {format_points(high, less_is_better)}]"
        )
    ends = ", ".join(format_difference(end, less_is_better) for end in (low, high))
    return f"{text} [{ends}], which may be chance"


def _describe_model(scores: Scores, model: str, task_or_mean: str, verb: str) -> Markup:
    """Return one model's score and its comparison with the reference."""
    note = _describe_difference(scores, scores.find_difference(model, task_or_mean))
    return Markup("<b>{}</b>{} {}{}").format(
        model,
        verb,
        format_points(scores.find_value(model, task_or_mean), scores.less_is_better),
        Markup(" ({})").format(note) if note else "",
    )


def _describe_difference(scores: Scores, difference: Comparison | None) -> Markup:
    """Return a difference with its interval and verdict; empty without a difference."""
    if difference is None:
        return Markup()
    less_is_better = difference.less_is_better
    amount = (
        f"{format_difference(difference.difference, less_is_better)} against {difference.reference}"
    )
    if difference.interval is None:
        return Markup("{}, no interval known").format(amount)
    low, high = (format_difference(end, less_is_better) for end in difference.interval)
    verdict = Markup.escape(scores.conclude(difference))
    if verdict in ("better", "worse"):
        verdict = Markup('<span class="{0}">{0}</span>').format(verdict)
    return Markup("{} [{}, {}], {}").format(amount, low, high, verdict)


def _name_row(task_or_mean: str) -> str:
    return (
        TITLE_BY_DOMAIN.get(task_or_mean)
        or TITLE_BY_MEAN.get(task_or_mean, task_or_mean).capitalize()
    )

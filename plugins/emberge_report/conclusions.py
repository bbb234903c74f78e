"""Sentences that sum up an evaluation's numbers."""

from __future__ import annotations

from collections.abc import Sequence

from emberge.wording import count_noun
from emberge_evaluate import TITLE_BY_DOMAIN, TITLE_BY_MEAN, Comparison, Estimate, Scores
from markupsafe import Markup

from emberge_report.formats import format_difference, format_points

# Words for the tasks that forgetting is measured on.
DOMAIN_PHRASES = {"elsewhere": "of domains that no training had", "out": "out of domain"}

# Sentences on two models by the verdict on their difference.
_PAIR_PHRASES = {
    "better": "{}: <b>{}</b> is better than <b>{}</b>, {}.",
    "worse": "{}: <b>{}</b> is worse than <b>{}</b>, {}.",
    "no clear difference": "{}: <b>{}</b> and <b>{}</b> cannot be told apart, {}.",
    "unknown": "{}: <b>{}</b> against <b>{}</b> {}, no interval known.",
}


def write_conclusions(scores: Scores, merges: Sequence[str]) -> list[Markup]:
    """Return sentences on the scores that claim no more than the intervals allow, on compared pairs first.

    `merges` are the names of merged models. Models that differ only in seed are treated as one.
    """
    if (pooled := scores.pooled) is not None:
        merges = [arm for arm in pooled.models if {*pooled.list_members(arm)} & {*merges}]
        scores = pooled
    headlines = _list_headlines(scores)
    pairs = [x for x in scores.comparisons if scores.reference not in (x.model, x.reference)]
    ties = [x for x in pairs if x.verdict == "no clear difference"]
    lines = [_describe_pair(one) for one in pairs if one.task_or_mean in headlines]
    for task_or_mean in headlines:
        known = ((model, scores.find_value(model, task_or_mean)) for model in scores.models)
        values = {model: value for model, value in known if value is not None}
        if not values:
            continue
        best, *behind = sorted(values, key=values.__getitem__, reverse=not scores.less_is_better)
        verb = " has the least loss," if scores.less_is_better else " scores highest,"
        others = [model for model in merges if model in behind]
        if best == scores.reference:  # none is ahead of it
            others = others or behind[:1]
        parts = [_describe_model(scores, best, task_or_mean, verb)]
        equal = [{x.model, x.reference} for x in ties if x.task_or_mean == task_or_mean]
        if names := ", ".join(name for pair in equal if best in pair for name in pair - {best}):
            parts[0] += f", and cannot be told apart from {names}"
        parts += [_describe_model(scores, m, task_or_mean, " scores") for m in others]
        lines.append(Markup("{}: {}.").format(_name_row(task_or_mean), Markup("; ").join(parts)))
    return [*lines, _describe_forgetting(scores)] if scores.forgetting else lines


def _describe_pair(pair: Comparison) -> Markup:
    """Return a sentence on two models that the recipe compares."""
    amount = format_difference(pair.difference, pair.less_is_better, pair.interval)
    facts = (_name_row(pair.task_or_mean), pair.model, pair.reference, amount)
    return Markup(_PAIR_PHRASES[pair.verdict]).format(*facts)


def write_verdicts(scores: Scores) -> list[Markup]:
    """Return a sentence for each requirement, unmet ones first."""
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
        return f"{text} [{', '.join(format_points(end, less_is_better) for end in (low, high))}]"
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
    amount = format_difference(difference.difference, less_is_better)
    amount += f" against {difference.reference}"
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

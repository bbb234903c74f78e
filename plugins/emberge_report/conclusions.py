"""Sentences that sum up an evaluation's numbers."""

from __future__ import annotations

from collections.abc import Sequence

from emberge.wording import count_noun
from emberge_evaluate import DOMAINS, MEANS, Comparison, Estimate, Scores
from markupsafe import Markup

from emberge_report.formats import format_difference, format_points

# Words for the tasks that forgetting is measured on.
DOMAIN_PHRASES = {"elsewhere": "of domains that no training had", "out": "out of domain"}


def write_conclusions(scores: Scores, merges: Sequence[str]) -> list[Markup]:
    """Return sentences on the scores that claim no more than the intervals allow.

    `merges` are the names of merged models. Models that differ only in seed are treated as one.
    """
    if (pooled := scores.pooled) is not None:
        merges = [arm for arm in pooled.models if {*pooled.list_members(arm)} & {*merges}]
        scores = pooled
    lines = [_describe_forgetting(scores)] if scores.forgetting else []
    for on in _list_headlines(scores):
        scored_models = [m for m in scores.models if scores.find_value(m, on) is not None]
        if not scored_models:
            continue
        choose = min if scores.less else max
        best = choose(scored_models, key=lambda model: scores.find_value(model, on) or 0.0)
        verb = " has the least loss," if scores.less else " scores highest,"
        others = [m for m in merges if m in scored_models and m != best]
        parts = [_describe_model(scores, best, on, verb)]
        parts += [_describe_model(scores, m, on, " scores") for m in others]
        lines.append(Markup("{}: {}.").format(_name_place(on), Markup("; ").join(parts)))
    return lines


def _list_headlines(scores: Scores) -> tuple[str, ...]:
    """Return the means that sum up a run: one for each domain, else the first mean, else the first task."""
    domains = tuple(mean for mean in scores.known_means if mean in DOMAINS)
    return domains or scores.known_means[:1] or tuple(task.name for task in scores.tasks[:1])


def _describe_forgetting(scores: Scores) -> Markup:
    """Return a sentence on models' forgetting of their base on tasks outside the training domains."""
    leading = scores.forgetting[0]
    count = sum(task.domain == leading.on for task in scores.tasks)
    parts = [
        Markup("<b>{}</b> {}").format(model, describe_loss(forgotten, scores.less))
        for model in (comparison.reference for comparison in scores.forgetting)
        if (forgotten := scores.find_forgotten(model)) is not None
    ]
    group_text = (
        f"on {count_noun(count, 'task')} {DOMAIN_PHRASES[leading.on]}, against {leading.model}"
    )
    return Markup("Forgetting, {}: {}.").format(group_text, Markup("; ").join(parts))


def describe_loss(forgotten: Estimate, less: bool) -> str:
    """Return a phrase on how much a model forgot that claims no more than the interval allows."""
    verb = "loses" if forgotten.mean > 0 else "gains"
    text = f"{verb} {format_points(abs(forgotten.mean), less)}"
    if forgotten.interval is None:
        return f"{text}, no interval known"
    low, high = forgotten.interval if forgotten.mean > 0 else [-x for x in forgotten.interval[::-1]]
    if low > 0:
        return f"{text} [{format_points(low, less)}, {format_points(high, less)}]"
    return f"{text} [{format_difference(low, less)}, {format_difference(high, less)}], which may be chance"


def _describe_model(scores: Scores, model: str, on: str, verb: str) -> Markup:
    """Return one model's score and its comparison with the reference."""
    note = _describe_difference(scores.find_difference(model, on))
    return Markup("<b>{}</b>{} {}{}").format(
        model,
        verb,
        format_points(scores.find_value(model, on), scores.less),
        Markup(" ({})").format(note) if note else "",
    )


def _describe_difference(difference: Comparison | None) -> Markup:
    """Return a difference with its interval and verdict; empty without a difference."""
    if difference is None:
        return Markup()
    less = difference.less
    amount = f"{format_difference(difference.difference, less)} against {difference.reference}"
    if difference.interval is None:
        return Markup("{}, no interval known").format(amount)
    low, high = (format_difference(end, less) for end in difference.interval)
    verdict = Markup.escape(difference.verdict)
    if verdict in ("better", "worse"):
        verdict = Markup('<span class="{0}">{0}</span>').format(verdict)
    return Markup("{} [{}, {}], {}").format(amount, low, high, verdict)


def _name_place(on: str) -> str:
    return DOMAINS.get(on) or MEANS.get(on, on).capitalize()

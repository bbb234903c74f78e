"""Sentences that sum up an evaluation's numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from emberge.evaluating import DOMAINS, MEANS, Comparison, Estimate, Scores
from emberge.wording import count_noun

from emberge_report.charts.markup import Child, tag
from emberge_report.page.tables import points, signed

# Words for the tasks that forgetting is measured on.
WHERE = {"elsewhere": "of domains that no training had", "out": "out of domain"}


def conclusions(scores: Scores, merged: Mapping[str, Sequence[str]]) -> list[Child]:
    """Return sentences on the scores that claim no more than the intervals allow.

    `merged` has the parents of each merge. Models that differ only in seed are treated as one.
    """
    lines: list[Child] = []
    if scores.pooled is not None:
        pooled = scores.pooled
        arm_of = {model: arm for arm in pooled.models for model in pooled.members_of(arm)}
        merged = {
            arm_of[name]: list(dict.fromkeys(arm_of.get(parent, parent) for parent in parents))
            for name, parents in merged.items()
            if name in arm_of
        }
        scores = pooled
    if scores.forgetting:
        lines.append(_describe_forgetting(scores))
    for on in scores.headlines():
        scored_models = [m for m in scores.models if scores.value(m, on) is not None]
        if not scored_models:
            continue
        choose = min if scores.less else max
        best = choose(scored_models, key=lambda model: scores.value(model, on) or 0.0)
        verb = " has the least loss," if scores.less else " scores highest,"
        parts: list[Child] = [_describe_model(scores, best, on, verb, merged)]
        parts += [
            _describe_model(scores, m, on, " scores", merged)
            for m in merged
            if m in scored_models and m != best
        ]
        sentences = [("; ", part) if i else part for i, part in enumerate(parts)]
        lines.append((_name_place(on), ": ", sentences, "."))
    return [*lines, *_compare_pairs(scores), *_compare_with_linear(scores)]


def _compare_pairs(scores: Scores) -> Iterator[Child]:
    """Yield a sentence for each pair of models that the recipe compares, on each mean that sums up a run."""
    for reference in scores.further_references:
        for model in scores.compared_with(reference):
            for on in scores.headlines():
                compared = _describe_difference(scores.difference(model, on, reference))
                if compared is not None:
                    yield (_name_place(on), ": ", tag("b", model), " ", compared, ".")


def _compare_with_linear(scores: Scores) -> Iterator[Child]:
    """Yield sentences on merges that differ from the linear merge of the same members in mean scores."""
    for linear in dict.fromkeys(comparison.reference for comparison in scores.against_linear):
        comparisons = [
            comparison
            for comparison in scores.against_linear
            if comparison.reference == linear
            and comparison.on in MEANS
            and comparison.interval is not None
        ]
        clear = [
            comparison for comparison in comparisons if comparison.verdict in ("better", "worse")
        ]
        if comparisons and not clear:
            names = ", ".join(dict.fromkeys(comparison.model for comparison in comparisons))
            yield f"No merge of these differs from linear ({linear}) by more than noise: {names}."
        for comparison in clear:
            yield (
                f"{_name_place(comparison.on)}, by more than noise: ",
                tag("b", comparison.model),
                " ",
                _describe_difference(comparison),
                ".",
            )


def _describe_forgetting(scores: Scores) -> Child:
    """Return a sentence on models' forgetting of their base on tasks outside the training domains."""
    leading = scores.forgetting[0]
    count = sum(task.domain == leading.on for task in scores.tasks)
    parts: list[Child] = []
    for model in (comparison.reference for comparison in scores.forgetting):
        forgotten = scores.forgotten(model)
        if forgotten is not None:
            parts.append((tag("b", model), f" {loss_in_words(forgotten, scores.less)}"))
    listing = [("; ", part) if i else part for i, part in enumerate(parts)]
    group_text = f"on {count_noun(count, 'task')} {WHERE[leading.on]}, against {leading.model}"
    return (f"Forgetting, {group_text}: ", listing, ".")


def loss_in_words(forgotten: Estimate, less: bool) -> str:
    """Return a phrase on how much a model forgot that claims no more than the interval allows."""
    verb = "loses" if forgotten.mean > 0 else "gains"
    text = f"{verb} {points(abs(forgotten.mean), less)}"
    if forgotten.interval is None:
        return f"{text}, no interval known"
    low, high = forgotten.interval if forgotten.mean > 0 else [-x for x in forgotten.interval[::-1]]
    if low > 0:
        return f"{text} [{points(low, less)}, {points(high, less)}]"
    return f"{text} [{signed(low, less)}, {signed(high, less)}], which may be chance"


def _describe_model(
    scores: Scores, model: str, on: str, verb: str, merged: Mapping[str, Sequence[str]]
) -> Child:
    """Return one model's score, its comparison with the reference, and a merge's parents' scores."""
    number = f"{verb} {points(scores.value(model, on), scores.less)}"
    compared = _describe_difference(scores.difference(model, on))
    values = [v for p in merged.get(model, ()) if (v := scores.value(p, on)) is not None]
    low, high = (points(end(values), scores.less) if values else "" for end in (min, max))
    parents = f"; its parents {low} to {high}" if values else ""
    comparison_note = (" (", compared, parents, ")") if compared else parents
    return (tag("b", model), number, comparison_note)


def _describe_difference(difference: Comparison | None) -> Child:
    if difference is None:
        return None
    less = difference.less
    amount = f"{signed(difference.difference, less)} against {difference.reference}"
    if difference.interval is None:
        return f"{amount}, no interval known"
    low, high = difference.interval
    words = difference.verdict
    return (
        amount,
        f" [{signed(low, less)}, {signed(high, less)}], ",
        tag("span", words, class_=words if words in ("better", "worse") else None),
    )


def _name_place(on: str) -> str:
    return DOMAINS.get(on) or MEANS.get(on, on).capitalize()

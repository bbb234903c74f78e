"""Sentences about the requirements of a recipe: what is required, what was measured, how certain it is."""

from __future__ import annotations

from emberge.evaluating import Verdict

# Test units below which a share of a score cannot be told.
ENOUGH_UNITS = 100
_PLACES = {"out": "out of domain"}


def describe_demand(verdict: Verdict, arm: str, other: str, *, less: bool) -> str:
    """Return the sentence on a difference that is "better_than" or "not_worse_than" another arm's score.

    A positive difference is a gain; `less` is True for losses.
    """
    margin, difference = verdict.margin, 100 * verdict.difference
    if verdict.demand == "better_than":
        by = f" by more than {margin:g} points" if margin else ""
        claim, least, doubt, condition = (
            f"better than {other}{by}",
            margin,
            "may be chance",
            "above",
        )
    else:
        by = f"at most {margin:g} points worse" if margin else "not worse"
        claim, least, doubt = f"{by} than {other}", -margin, "is too uncertain"
        condition = "at least"
    is_near = difference > least if verdict.demand == "better_than" else difference >= least
    unit = "points of gain" if less else "points"
    doubt = f" {doubt}" if is_near and not verdict.met else ""
    return (
        f"{arm} is to be {claim} on {verdict.tasks}: {difference:+.2f} {unit}{doubt} (lower bound "
        f"{100 * verdict.lower_bound:+.2f} at 95%, must be {condition} {f'{least:+g}' if least else '0'})"
    )


def describe_forgetting(verdict: Verdict, arm: str, base: str) -> str:
    """Return the sentence on the loss against the base that is allowed; a positive difference is a gain."""
    difference, bound = 100 * verdict.difference, 100 * verdict.lower_bound
    claim = (
        f"{arm} is to lose at most {verdict.margin:g} points against {base} on tasks "
        f"{_PLACES.get(verdict.tasks, verdict.tasks)}"
    )
    is_unsure = bound < -verdict.margin <= difference
    worst = (
        f"but may have lost {-bound:.2f}" if is_unsure else f"at worst it {_describe_change(bound)}"
    )
    return f"{claim}: it {_describe_change(difference)} points, {worst} (at 95%)"


def describe_share_kept(verdict: Verdict, arm: str, other: str, units: str, is_few: bool) -> str:
    """Return the sentence on the share of another model's score that is to be kept.

    `units` is the number of test units in words, "" without any; a bound of 0 is unknown.
    """
    claim = f"{arm} is to keep at least {100 * verdict.margin:g}% of {other} on {verdict.tasks}"
    if not units:
        return f"{claim}: cannot be told, as no task there has scores by query"
    if is_few:
        return f"{claim}: cannot be told with {units}; take {ENOUGH_UNITS} or more"
    if not verdict.lower_bound:
        return f"{claim}: cannot be told, as the score of {other} may be 0"
    return (
        f"{claim}: it keeps {verdict.difference:.1%}, at worst {verdict.lower_bound:.1%} (at 95%)"
    )


def describe_size(model: str, unit: str, limit: float, size: float | None) -> str:
    """Return the sentence on the size that a model may have; `size` is None if it is not known."""
    claim = f"{model} is to have at most {limit:,.15g} {unit}"
    return f"{claim}: cannot be told" if size is None else f"{claim}: it has {size:,.15g}"


def _describe_change(points: float) -> str:
    return f"{'lost' if points < 0 else 'gained'} {abs(points):.2f}"

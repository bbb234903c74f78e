"""Sentences about the requirements of a recipe: what is required, what was measured, how certain it is."""

from __future__ import annotations

from emberge.wording import count_noun

# Test units below which a share of a score cannot be told.
ENOUGH_UNITS = 100
_PLACES = {"out": "out of domain"}


def describe_demand(
    demand: str,
    arm: str,
    other: str,
    tasks: str,
    margin: float,
    *,
    difference: float,
    bound: float,
    less: bool,
) -> str:
    """Return the sentence on a required difference, in points; a positive difference is a gain.

    `demand` is "better_than" or "not_worse_than", by `margin`; `less` is True for losses.
    """
    if demand == "better_than":
        by = f" by more than {margin:g} points" if margin else ""
        claim, least, doubt = f"better than {other}{by}", margin, "may be chance"
        is_met, is_near, condition = bound > least, difference > least, "above"
    else:
        by = f"at most {margin:g} points worse" if margin else "not worse"
        claim, least, doubt = f"{by} than {other}", -margin, "is too uncertain"
        is_met, is_near, condition = bound >= least, difference >= least, "at least"
    unit = "points of gain" if less else "points"
    doubt = f" {doubt}" if is_near and not is_met else ""
    return (
        f"{arm} is to be {claim} on {tasks}: {difference:+.2f} {unit}{doubt} (lower bound {bound:+.2f} at "
        f"95%, must be {condition} {f'{least:+g}' if least else '0'})"
    )


def describe_forgetting(
    arm: str,
    base: str,
    on: str,
    *,
    limit: float,
    difference: float,
    bound: float,
) -> str:
    """Return the sentence on the loss against the base that is allowed, in points; a gain is positive."""
    claim = (
        f"{arm} is to lose at most {limit:g} points against {base} on tasks {_PLACES.get(on, on)}"
    )
    is_unsure = bound < -limit <= difference
    worst = (
        f"but may have lost {-bound:.2f}" if is_unsure else f"at worst it {_describe_change(bound)}"
    )
    return f"{claim}: it {_describe_change(difference)} points, {worst} (at 95%)"


def describe_share_kept(
    arm: str,
    other: str,
    tasks: str,
    *,
    required: float,
    share: float,
    low: float | None,
    units: int,
    unit: str,
) -> str:
    """Return the sentence on the share of another model's score that is to be kept, on `units` test units."""
    claim = f"{arm} is to keep at least {100 * required:g}% of {other} on {tasks}"
    if not units:
        return f"{claim}: cannot be told, as no task there has scores by query"
    if units < ENOUGH_UNITS:
        return (
            f"{claim}: cannot be told with {count_noun(units, unit)}; take {ENOUGH_UNITS} or more"
        )
    if low is None:
        return f"{claim}: cannot be told, as the score of {other} may be 0"
    return f"{claim}: it keeps {share:.1%}, at worst {low:.1%} (at 95%)"


def describe_size(model: str, unit: str, limit: float, size: float | None) -> str:
    """Return the sentence on the size that a model may have; `size` is None if it is not known."""
    claim = f"{model} is to have at most {limit:,.15g} {unit}"
    return f"{claim}: cannot be told" if size is None else f"{claim}: it has {size:,.15g}"


def _describe_change(points: float) -> str:
    return f"{'lost' if points < 0 else 'gained'} {abs(points):.2f}"

"""The note that `emberge check` shows of a planned merge: tensors, method and weights in a few lines."""

from __future__ import annotations

from collections.abc import Iterator

from emberge.merging import MergePlan, find_weighing_link
from emberge.model_folder import describe_origin
from emberge.wording import (
    count_noun,
    format_counts_by_first_word,
    format_size,
    join_some,
    show_chain,
)

_SHOWN_NAMES = 3
_WEIGHTS_BY_ROLE = {
    "share": "what is given; each is divided by it",
    "scale": "taken as they are, as factors",
    "unused": "used by rules alone",
}


def describe_plan(plan: MergePlan) -> Iterator[str]:
    """Yield the plan as lines of a label and text; a label that repeats is left blank."""
    before = ""
    for label, words in _list_labelled_lines(plan):
        yield f"{'' if label == before else label:<10}  {words}"
        before = label


def _list_labelled_lines(plan: MergePlan) -> Iterator[tuple[str, str]]:
    request = plan.request
    if plan.tensors:
        yield from _describe_tensors(plan)
    base = f", around the base {request.base.name}" if request.base is not None else ""
    yield "method", f"{show_chain(link.plain() for link in request.strategy)}{base}"
    if plan.tensors:
        from emberge.numerics import describe_kernels

        yield "kernels", describe_kernels()
    for number, rule in enumerate(request.rules):
        owned = sum(
            request.find_chain_number(tensor.result.name) == number for tensor in plan.tensors
        )
        count = f" ({count_noun(owned, 'tensor')})" if plan.tensors else ""
        yield (
            "method",
            f"{show_chain(link.plain() for link in rule.strategy)} for {rule.filter}{count}",
        )
    if plan.tensors:
        yield from _describe_weights(plan)
    if plan.template is not None:
        yield "template", describe_origin(plan.template)
    if plan.future_models:
        assumption = ", taken to be like the others" if plan.tensors else ""
        names = join_some(sorted(plan.future_models), _SHOWN_NAMES)
        yield "not seen", f"weights of {names}{assumption}"


def _describe_tensors(plan: MergePlan) -> Iterator[tuple[str, str]]:
    parts = [f"{len(plan.merged)} merged"] if plan.merged else []
    for word, names in (("copied", plan.copied), ("dropped", plan.dropped)):
        more = ", …" if len(names) > _SHOWN_NAMES else ""
        listed = f"{', '.join(names[:_SHOWN_NAMES])}{more}"
        parts += [f"{len(names)} {word} ({listed})"] if names else []
    yield "tensors", ", ".join(parts)
    for name, left in plan.omitted.items():
        yield "left out", f"of '{name}': {format_counts_by_first_word(left)}"
    yield "writes", f"{format_size(sum(t.result.nbytes for t in plan.tensors))}, {plan.dtype}"


def _describe_weights(plan: MergePlan) -> Iterator[tuple[str, str]]:
    link, labels = find_weighing_link(plan.request.strategy, plan.request.inputs)
    if link.weight_role == "unused" and not plan.request.rules:
        yield "weights", f"not used by {link.name_in_messages}"
        return
    base_share = plan.weights.get(plan.request.base.name, 0.0) if plan.request.base else 0.0
    left_share = f"the {1 - base_share:.3g} that the base leaves"
    if plan.request.weights_by:
        remainder = f", of {left_share}" if base_share else ""
        yield "weights", f"by {plan.request.weights_by}{remainder}"
        return
    width = min(40, max((len(name) for name in plan.weights), default=0))
    for name, weight in plan.weights.items():
        least, largest = (f"{bound:.3g}" for bound in plan.weight_ranges[name])
        varied = f" ({least} to {largest})" if least != largest else ""
        yield "weights", f"{name:<{width}}  {weight:.3g}{varied}"
    words = _WEIGHTS_BY_ROLE[link.weight_role]
    words += ", within its group" if any(labels.values()) and link.weight_role == "share" else ""
    factor = f"; times {left_share}" if base_share else ""
    yield "weights", f"{'sum':<{width}}  {plan.weight_sum:.3g}: {words}{factor}"

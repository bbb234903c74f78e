"""Summary of a merge plan for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from emberge.contracts import Stage
from emberge.merging.merge_plan import MergePlan, find_weighing_link
from emberge.model_folder import origin_line
from emberge.wording import count_by_first_word, human_size, join_some

_SHOWN_NAMES = 3


def summary(plan: MergePlan) -> list[str]:
    """Return the plan as lines of a label and text."""
    inside = _describe_tensors(plan) if plan.tensors else ()
    weights = _describe_weights(plan) if plan.tensors else ()
    entries = [*inside, *_describe_method(plan), *weights, *_describe_others(plan)]
    lines, before = [], ""
    for label, words in entries:
        lines.append(f"{'' if label == before else label:<10}  {words}")
        before = label
    return lines


def _describe_tensors(plan: MergePlan) -> Iterator[tuple[str, str]]:
    counts = [("merged", plan.merged), ("copied", plan.copied), ("dropped", list(plan.dropped))]
    parts = [f"{len(names)} {what}{_list_names(what, names)}" for what, names in counts if names]
    yield "tensors", ", ".join(parts)
    for name, left in plan.omitted.items():
        yield "left out", f"of '{name}': {count_by_first_word(left)}"
    if plan.renamed:
        old, new = next(iter(plan.renamed.items()))
        yield "renamed", f"{len(plan.renamed)}, such as {old} to {new}"
    yield "writes", f"{human_size(plan.bytes)}, {plan.dtype}"


def _list_names(what: str, names: Sequence[str]) -> str:
    if what == "merged":
        return ""
    more = ", …" if len(names) > _SHOWN_NAMES else ""
    return f" ({', '.join(names[:_SHOWN_NAMES])}{more})"


def _describe_method(plan: MergePlan) -> Iterator[tuple[str, str]]:
    base = f", around the base {plan.request.base.name}" if plan.request.base is not None else ""
    yield "method", f"{_show_chain(plan.request.strategy)}{base}"
    if plan.tensors:
        from emberge.numerics import kernels_line

        yield "kernels", kernels_line()
    for number, rule in enumerate(plan.request.rules):
        owned = sum(plan.request.chain_of(t.name) == number for t in plan.tensors)
        count = f" ({owned} tensors)" if plan.tensors else ""
        yield "method", f"{_show_chain(rule.strategy)} for {rule.filter}{count}"


def _show_chain(links: Sequence[Stage]) -> str:
    return " → ".join(_show_link(link.plain()) for link in links)


def _show_link(plain: Mapping[str, object] | str) -> str:
    if isinstance(plain, str):
        return plain
    name, options = next(iter(plain.items()))
    listed = options.items() if isinstance(options, Mapping) else ()
    return f"{name} ({', '.join(f'{key} {value}' for key, value in listed)})"


# ── weights ─────────────────────────────────────────────────────────────────────────────────────


def _describe_weights(plan: MergePlan) -> Iterator[tuple[str, str]]:
    link, labels = find_weighing_link(plan.request.strategy, plan.request.inputs)
    role = link.weight_role
    if role == "unused" and not plan.request.rules:
        yield "weights", f"not used by {link.name_in_messages}"
        return
    base = plan.request.base.name if plan.request.base is not None else ""
    base_share = plan.weights.get(base, 0.0)
    if plan.request.weights_by:
        remainder = f", of the {1 - base_share:.3g} that the base leaves" if base_share else ""
        yield "weights", f"by {plan.request.weights_by}{remainder}"
        return
    width = min(40, max((len(name) for name in plan.weights), default=0))
    for name, weight in plan.weights.items():
        least, largest = (f"{bound:.3g}" for bound in plan.weight_ranges[name])
        varied = f" ({least} to {largest})" if least != largest else ""
        yield "weights", f"{name:<{width}}  {weight:.3g}{varied}"
    words = {
        "share": "what is given; each is divided by it",
        "scale": "taken as they are, as factors",
        "unused": "used by rules alone",
    }
    within = ", within its group" if any(labels.values()) and role == "share" else ""
    factor_note = f"; times the {1 - base_share:.3g} that the base leaves" if base_share else ""
    yield "weights", f"{'sum':<{width}}  {plan.weight_sum:.3g}: {words[role]}{within}{factor_note}"


# ── beside the weights ──────────────────────────────────────────────────────────────────────────


def _describe_others(plan: MergePlan) -> Iterator[tuple[str, str]]:
    if plan.template is not None:
        yield "beside", origin_line(plan.template)
    if plan.future_models:
        assumption = ", taken to be like the others" if plan.tensors else ""
        yield (
            "not seen",
            f"weights of {join_some(sorted(plan.future_models), _SHOWN_NAMES)}{assumption}",
        )

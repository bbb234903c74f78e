"""A merge's plan as people read it before they let it run: short, and with every number that matters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from emberge.contracts.merge import Stage
from emberge.contracts.step import Machine
from emberge.devices import human_size
from emberge.merging.forecast import forecast
from emberge.merging.licences import licence_line
from emberge.merging.options import stage_name
from emberge.merging.provenance import plain_stage
from emberge.merging.remarks import origin_line
from emberge.merging.shares import Share, weighing

if TYPE_CHECKING:
    from emberge.merging.plan import MergePlan

__all__ = ["outline", "shown_layers"]

_FEW = 3
_MIXED = 0.05  # elements that may have another weight than the rest of their layer without a word
_NUMBERED = re.compile(r"(.*)\.(\d+)")


def outline(plan: MergePlan, machine: Machine | None = None) -> list[str]:
    """The plan in lines of a label and what there is to say, for a machine, by default this one."""
    inside = [*_tensors(plan), *_costs(plan, machine)] if plan.tensors else []
    weights = _weights(plan) if plan.tensors else ()
    found = [*inside, *_method(plan), *weights, *_beside(plan)]
    lines, before = [], ""
    for label, words in found:
        lines.append(f"{'' if label == before else label:<10}  {words}")
        before = label
    return lines


def _tensors(plan: MergePlan) -> Iterator[tuple[str, str]]:
    counts = [("merged", plan.merged), ("copied", plan.copied), ("dropped", list(plan.dropped))]
    parts = [f"{len(names)} {what}{_such(what, names)}" for what, names in counts if names]
    yield "tensors", ", ".join(parts)
    if plan.renamed:
        old, new = next(iter(plan.renamed.items()))
        yield "renamed", f"{len(plan.renamed)}, such as {old} to {new}"


def _such(what: str, names: Sequence[str]) -> str:
    if what == "merged":
        return ""
    more = ", …" if len(names) > _FEW else ""
    return f" ({', '.join(names[:_FEW])}{more})"


def _costs(plan: MergePlan, machine: Machine | None) -> Iterator[tuple[str, str]]:
    cost = forecast(plan, machine)
    times = cost.read / max(1, cost.inputs)
    over = f", {times:.2g} times over" if times > 1.05 else ""
    yield "reads", f"{human_size(cost.inputs)}{over}"
    yield "writes", f"{human_size(cost.write)}, {plan.dtype}"
    threads = "1 thread" if cost.workers == 1 else f"{cost.workers} threads"
    yield (
        "needs",
        f"about {human_size(float(f'{cost.memory:.1e}'))} of memory and {_time(cost.seconds)} on {threads}",
    )


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _method(plan: MergePlan) -> Iterator[tuple[str, str]]:
    base = f", around the base {plan.request.base.name}" if plan.request.base is not None else ""
    yield "method", f"{_chain(plan.request.strategy)}{base}"
    for number, rule in enumerate(plan.request.rules):
        owned = sum(plan.request.chain_of(t.name) == number for t in plan.tensors)
        count = f" ({owned} tensors)" if plan.tensors else ""
        yield "method", f"{_chain(rule.strategy)} for {rule.filter}{count}"


def _chain(links: Sequence[Stage]) -> str:
    return " → ".join(map(_link, map(plain_stage, links)))


def _link(said: Mapping[str, object] | str) -> str:
    if isinstance(said, str):
        return said
    name, options = next(iter(said.items()))
    listed = options.items() if isinstance(options, Mapping) else ()
    return f"{name} ({', '.join(f'{key} {value}' for key, value in listed)})"


# ── weights ─────────────────────────────────────────────────────────────────────────────────────


def _weights(plan: MergePlan) -> Iterator[tuple[str, str]]:
    link, labels = weighing(plan.request.strategy, plan.request.inputs)
    role = link.weight_role
    if role == "unused" and not plan.request.rules:
        yield "weights", f"not used by {stage_name(link)}"
        return
    width = min(40, max((len(name) for name in plan.shares), default=0))
    for name, share in plan.shares.items():
        yield "weights", f"{name:<{width}}  {_number(share.mean)}{shown_layers(share)}"
    words = {
        "share": "what is given; each is divided by it",
        "scale": "taken as they are, as factors",
        "unused": "used by rules alone",
    }
    within = ", within its group" if any(labels.values()) and role == "share" else ""
    yield "weights", f"{'sum':<{width}}  {_number(plan.weight_sum)}: {words[role]}{within}"


def shown_layers(share: Share) -> str:
    """How a weight varies over layers, in a few words; nothing when it does not."""
    varied = len({_number(weight) for weight in share.layers.values()}) > 1
    if not varied:
        spread = f"{_number(share.least)} to {_number(share.largest)}"
        return f" ({spread} by tensor)" if share.mixed > _MIXED else ""
    ranges = list(_ranges(share.layers))
    if len(ranges) <= _FEW:
        return f" ({', '.join(ranges)})"
    numbered = [(la, w) for la, w in sorted(share.layers.items(), key=_place) if _tower(la)]
    weights = [weight for _, weight in numbered]
    if len({_tower(la) for la, _ in numbered}) == 1 and sorted(weights) in (weights, weights[::-1]):
        (first, low), (last, high) = numbered[0], numbered[-1]
        return f" ({_number(low)} in {first} to {_number(high)} in {last})"
    return f" ({_number(min(share.layers.values()))} to {_number(max(share.layers.values()))} by layer)"


def _ranges(layers: Mapping[str, float]) -> Iterator[str]:
    """Neighbouring layers of equal weight together: `embeddings 0`, `layers.0–11 0.5`."""
    runs: list[tuple[str, str, str]] = []
    for layer, weight in sorted(layers.items(), key=_place):
        shown = _number(weight)
        if runs and runs[-1][2] == shown and _tower(runs[-1][1]) == _tower(layer) != "":
            runs[-1] = (runs[-1][0], layer, shown)
        else:
            runs.append((layer, layer, shown))
    for first, last, shown in runs:
        end = "" if first == last else f"–{last.rpartition('.')[2]}"
        yield f"{first}{end} {shown}"


def _place(entry: tuple[str, float]) -> tuple[bool, str, int]:
    layer, _ = entry
    found = _NUMBERED.fullmatch(layer)
    name, number = (found[1], int(found[2])) if found else (layer, 0)
    return layer != "embeddings", name, number


def _tower(layer: str) -> str:
    found = _NUMBERED.fullmatch(layer)
    return found[1] if found else ""


def _number(value: float) -> str:
    return f"{value:.3g}"


# ── what stands beside the weights ──────────────────────────────────────────────────────────────


def _beside(plan: MergePlan) -> Iterator[tuple[str, str]]:
    seen = [m.name for m in plan.request.everyone if m.folder is not None]
    if plan.alike and len(seen) > 1:
        yield "alike", "vocabulary, special tokens, pooling, prompts, longest text and similarity"
    if plan.template is not None:
        yield "beside", origin_line(plan.template)
    if plan.licences:
        yield "licences", licence_line(plan.licences)
    if plan.unseen:
        names = sorted(plan.unseen)
        more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
        rest = ", taken to be like the others" if plan.tensors else ""
        yield "not seen", f"weights of {', '.join(names[:_FEW])}{more}{rest}"

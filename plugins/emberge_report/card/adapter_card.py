"""Model card of an adapter: its base, how to open it, and what its rank leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from emberge.wording import code_block, code_span, prose, table_lines

from emberge_report.card.card import (
    Facts,
    cost_lines,
    licence_lines,
    parent_lines,
    provenance_lines,
    weight_lines,
)
from emberge_report.card.card_text import python_text, yaml_block

__all__ = ["adapter_card", "is_adapter"]

_SHOWN = 10


def is_adapter(facts: Facts) -> bool:
    """Return whether a model is an adapter on a base."""
    return isinstance(facts.artifact.details.get("adapter"), Mapping)


def adapter_card(facts: Facts) -> str:
    """Return the card, front matter and text."""
    # The class of whole cards would bring all that the hub is called with.
    from huggingface_hub.repocard_data import ModelCardData

    bases = list(dict.fromkeys(base for root in facts.roots for base in root.bases))
    data = ModelCardData(
        base_model=bases or None,
        library_name="peft",
        pipeline_tag="feature-extraction",
        tags=["lora", "peft", "feature-extraction", "emberge", *(["merge"] * facts.merged)],
    )
    if bases:
        data["base_model_relation"] = "adapter"
    body = "\n".join(line for section in _sections(facts) for line in (*section, ""))
    return f"---\n{data.to_yaml()}\n---\n\n{body.rstrip()}\n"


def _sections(facts: Facts) -> Iterator[Iterable[str]]:
    base = str(facts.artifact.details.get("base", "its base"))
    how = "by merging adapters" if facts.merged else "from a fine-tune and its base"
    if "loss_curve" in facts.artifact.details:
        how = "by training"
    yield [f"# {prose(facts.name)}"]
    yield [f"A LoRA adapter of {prose(base)}, made with emberge {how}. It is no model by itself."]
    yield _usage(facts.name, base)
    yield _content(facts.artifact.details["adapter"])
    yield parent_lines(facts)
    if facts.merged:
        strategy = facts.artifact.details["strategy"]
        single = strategy[0] if isinstance(strategy, list) and len(strategy) == 1 else strategy
        yield [
            "## How it was merged",
            "",
            *yaml_block({"strategy": single}),
            *weight_lines(facts),
            "",
            *cost_lines(facts),
        ]
    yield licence_lines(facts)
    yield provenance_lines(facts)


def _usage(name: str, base: str) -> list[str]:
    lines = [
        "from peft import PeftModel",
        "from transformers import AutoModel",
        "",
        f"base = AutoModel.from_pretrained({python_text(base)})",
        f"model = PeftModel.from_pretrained(base, {python_text(name)})  # the path of this folder, or its "
        "hub id",
    ]
    return ["## Use", "", *code_block("\n".join(lines), "python")]


def _content(adapter: Mapping[str, Any]) -> list[str]:
    ranks, errors = dict(adapter.get("ranks", {})), dict(adapter.get("errors", {}))
    whole = list(adapter.get("whole", ()))
    lines = ["## Content", ""]
    if ranks:
        span = sorted({min(ranks.values()), max(ranks.values())})
        lines.append(f"{len(ranks)} matrices of rank {' to '.join(map(str, span))}.")
    if whole:
        lines.append(f"{len(whole)} tensors whole, such as {code_span(str(whole[0]))}.")
    if not errors:
        return lines  # trained as it is: there was nothing to leave out
    cut = sorted(((e, n) for n, e in errors.items() if e > 0), reverse=True)[:_SHOWN]
    if not cut:
        return [*lines, "", "Nothing is left out: it is exact."]
    rows = [[code_span(name), f"{error:.3g}"] for error, name in cut]
    head = ["Most is left out of (relative error)", "Error"]
    return [*lines, "", *table_lines(head, rows)]

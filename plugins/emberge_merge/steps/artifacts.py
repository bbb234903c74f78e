"""Artifacts of merges and of adapters made by steps, and what the training of a merge's members cost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from emberge import Artifact, Workspace
from emberge.contracts import (
    AdapterFacts,
    BaseFacts,
    MergeDetails,
    TrainingCost,
    TrainingWork,
)
from emberge.merging import find_weighing_link
from emberge.wording import format_counts_by_first_word

if TYPE_CHECKING:
    from emberge import Model, ModelRef
    from emberge.merging import MergeInput, MergeReport, MergeRequest, Rule

    from emberge_merge.adapters.merge_to_adapter import AdapterReport
    from emberge_merge.steps.merge_options import ModelEntry


def name_parents(
    members: Sequence[tuple[ModelEntry, Model]], inputs: Sequence[MergeInput]
) -> list[str]:
    """Return the recipe's reference of each model, or its name in the merge if several have one reference."""
    texts = [entry.model.text for entry, _ in members]
    counts = Counter(texts)
    return [
        text if counts[text] == 1 else model.name for text, model in zip(texts, inputs, strict=True)
    ]


def build_artifact(
    members: Sequence[tuple[ModelEntry, Model]],
    report: MergeReport,
    *,
    base: ModelRef | None,
    keep: float,
    rules: Sequence[Rule],
    known_warnings: Sequence[str],
) -> Artifact:
    """Return the artifact of a finished merge; `members` has a model for each input of its request.

    `base`, `keep` and `rules` are the recipe's, `known_warnings` were already given before the run.
    """
    plan, request, stated = report.plan, report.plan.request, report.plan.joined_facts
    inputs, base = request.inputs, base if request.base is not None else None
    parents = name_parents(members, inputs)
    names = [(parent, model.name) for parent, model in zip(parents, inputs, strict=True)]
    weights = {parent: plan.weights[name] for parent, name in names}
    if request.base is not None and request.base.name in plan.weights:
        weights[str(base)] = plan.weights[request.base.name]
    trainings = find_trainings(members)
    weighing = [find_weighing_link(chain, inputs)[0] for chain in request.chains]
    uses_weights = any(link.weight_role != "unused" for link in weighing)
    details = MergeDetails(
        strategy=[link.plain() for link in request.strategy],
        weights=weights,
        model_options={
            p: i.plain_options for p, i in zip(parents, inputs, strict=True) if i.options
        },
        weight_sum=plan.weight_sum if uses_weights else None,
        uses_weights=uses_weights,
        models={p: model.fingerprint for p, (_, model) in zip(parents, members, strict=True)},
        tensors={
            "merged": len(plan.merged),
            "copied": len(plan.copied),
            "dropped": len(plan.dropped),
        },
        dtype=plan.dtype,
        left_out={
            p: format_counts_by_first_word(plan.omitted[n]) for p, n in names if n in plan.omitted
        },
        left_out_tensors=_join_numbered(plan.dropped),
        left_out_files={p: list(stated.left_files[n]) for p, n in names if n in stated.left_files},
        copied_heads=list(stated.heads),
        fetched=[asdict(one) for one in report.fetched],
        weights_by_layer=report.findings,
        keep=keep,
        rules={rule.filter: [link.plain() for link in rule.strategy] for rule in rules},
        training_cost=compute_training_cost(trainings),
    )
    return Artifact(
        kind="model",
        size=add_sizes(model for _, model in members),
        parents=tuple(dict.fromkeys(parents)),
        details=details,
        warnings=tuple(known_warnings),
        origin="merged",
        base=_find_base(members, request, base),
        trainings=trainings,
    )


def add_sizes(models: Iterable[Model]) -> int | None:
    """Return the number of training examples behind all models; None unless every model knows its own."""
    artifacts = [model.artifact for model in models]
    sizes = [one.size for one in artifacts if one is not None and one.size is not None]
    return sum(sizes) if sizes and len(sizes) == len(artifacts) else None


def _find_base(
    members: Sequence[tuple[ModelEntry, Model]], request: MergeRequest, base: ModelRef | None
) -> BaseFacts | None:
    """Return the base of a merge, or without one the model that all members were made from, if it is one."""
    if request.base is not None and request.base.fingerprint:
        return BaseFacts(str(base), fingerprint=request.base.fingerprint)
    bases = [m.artifact.base for _, m in members if m.artifact]
    contents = {one.fingerprint if one is not None else "" for one in bases}
    common = contents.pop() if len(contents) == 1 else ""
    return BaseFacts(str(base or ""), fingerprint=common) if base or common else None


def describe_adapter(report: AdapterReport, workspace: Workspace) -> AdapterFacts:
    """Return the facts of an adapter for the artifact; announce its warnings and its worst error."""
    for warning in report.warnings:
        workspace.warn(warning)
    workspace.metric("truncation_error_worst", report.worst_error)
    return AdapterFacts(ranks=report.ranks, errors=report.errors, whole=report.whole)


def _join_numbered(names: Iterable[str]) -> str:
    """Return all names, those that differ in numbers as one: `layers.*.bias (12), lm_head.weight`."""
    counted = Counter(re.sub(r"(?<![^.])\d+(?=\.)", "*", name) for name in names)
    return ", ".join(name if "*" not in name else f"{name} ({n})" for name, n in counted.items())


def find_trainings(members: Sequence[tuple[ModelEntry, Model]]) -> dict[str, TrainingWork]:
    """Return the trainings behind a merge, but those of pretrained models; empty if one is unknown."""
    trainings = []
    for model, member in ((entry.model, member) for entry, member in members):
        if model.step is not None:
            trainings.append(member.list_trainings(model.step))
        elif (known := member.artifact) and known.origin in ("trained", "merged"):  # by other runs
            each = member.list_trainings("").items()
            trainings.append({f"{model.text}/{name}".rstrip("/"): one for name, one in each})
    return {n: one for each in trainings for n, one in each.items()} if all(trainings) else {}


def compute_training_cost(trainings: Mapping[str, TrainingWork]) -> TrainingCost | None:
    """Return the cost TC = Σₘ |D⁽ᵐ⁾| / |D|; None if a training's data are unknown (arXiv:2602.05787).

    All data are the union of the trainings' datasets by name; if trainings give different sizes for a
    dataset, the largest counts.
    """
    sizes: dict[str, int] = {}
    for training in trainings.values():
        if not training.datasets:
            return None
        for name, used in training.datasets.items():
            sizes[name] = max(sizes.get(name, 0), used.of)
    of = sum(sizes.values())
    rows = sum(used.rows for one in trainings.values() for used in one.datasets.values())
    return TrainingCost(round(rows / of, 6), rows, of) if of else None

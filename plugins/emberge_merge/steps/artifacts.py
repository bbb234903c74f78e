"""Artifacts of merges and of adapters made by steps, and what the training of a merge's members cost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from emberge import Artifact, Workspace
from emberge.wording import count_by_first_word

if TYPE_CHECKING:
    from emberge import Model, ModelRef
    from emberge.merging import MergePlan, MergeReport, MergeRequest

    from emberge_merge.adapters.merge_to_adapter import AdapterReport
    from emberge_merge.steps.merge_options import ModelEntry

# What a training says of its work, which is added up.
_WORK = ("examples", "seconds", "cpu_seconds")
Trainings = Mapping[str, Mapping[str, Any]]


def build_artifact(
    found_models: Sequence[tuple[ModelEntry, Model]],
    request: MergeRequest,
    report: MergeReport,
    options: Mapping[str, Any],
    known_warnings: Sequence[str] = (),
) -> Artifact:
    """Return the artifact of a finished merge; `found_models` has a model for each of the request's inputs.

    `options` are further details, `known_warnings` the warnings that were already given before the run.
    """
    inputs = request.inputs
    model_counts = Counter(entry.model.text for entry, _ in found_models)
    # The recipe's own reference, unless one led to several models (`$run.checkpoints`).
    parents = [e.model.text if model_counts[e.model.text] == 1 else m.name for e, m in found_models]
    plan = report.plan
    weights = dict(zip(parents, (plan.weights[m.name] for m in inputs), strict=True))
    if request.base is not None and request.base.name in plan.weights:
        weights[str(options["base"])] = plan.weights[request.base.name]
    details: dict[str, Any] = {
        "strategy": [link.plain() for link in request.strategy],
        "weights": weights,
        "weight_sum": plan.weight_sum,
        "models": {
            p: model.fingerprint for p, (_, model) in zip(parents, found_models, strict=True)
        },
        "tensors": {
            "merged": len(plan.merged),
            "copied": len(plan.copied),
            "dropped": len(plan.dropped),
        },
        "dtype": plan.dtype,
    }
    details |= {key: value for key, value in _name_left_out(parents, plan) if value}
    if report.fetched:
        details["fetched"] = [asdict(one) for one in report.fetched]
    if report.findings:
        details["weights_by_layer"] = report.findings
    origins = {m.artifact.details.get("base_fingerprint") for _, m in found_models if m.artifact}
    if request.base is not None and request.base.fingerprint:
        origins = {request.base.fingerprint}
    if len(origins) == 1 and None not in origins:
        details["base_fingerprint"] = origins.pop()
    details |= {**options} | compute_cost_details(
        [(entry.model, model) for entry, model in found_models]
    )
    return Artifact(
        kind="model",
        size=add_sizes(model for _, model in found_models),
        parents=tuple(dict.fromkeys(parents)),
        details=details,
        warnings=tuple(known_warnings),
    )


def add_sizes(models: Iterable[Model]) -> int | None:
    """Return the number of training examples behind all models; None unless every model knows its own."""
    artifacts = [model.artifact for model in models]
    sizes = [one.size for one in artifacts if one is not None and one.size is not None]
    return sum(sizes) if sizes and len(sizes) == len(artifacts) else None


def _name_left_out(parents: Sequence[str], plan: MergePlan) -> Iterator[tuple[str, Any]]:
    """Yield what of the models' tensors and files the result does not have, and heads that it copied."""
    names = [(parent, m.name) for parent, m in zip(parents, plan.request.inputs, strict=True)]
    files = plan.stated.left_files
    yield (
        "left_out",
        {p: count_by_first_word(plan.omitted[n]) for p, n in names if n in plan.omitted},
    )
    yield "left_out_tensors", _join_numbered(plan.dropped)
    yield "left_out_files", {p: list(files[n]) for p, n in names if n in files}
    yield "copied_heads", list(plan.stated.heads)


def describe_adapter(report: AdapterReport, base: str, workspace: Workspace) -> dict[str, Any]:
    """Return the details of an adapter for the artifact; announce its warnings and its worst error."""
    for warning in report.warnings:
        workspace.warn(warning)
    name, worst_error = report.worst
    workspace.metric("truncation_error_worst", worst_error)
    details: dict[str, Any] = {
        "base": base,
        "adapter": {
            "ranks": dict(report.ranks),
            "errors": dict(report.errors),
            "worst": {"tensor": name, "error": worst_error},
            "whole": list(report.whole),
        },
    }
    if report.findings:
        details["weights_by_layer"] = report.findings
    return details


def _join_numbered(names: Iterable[str]) -> str:
    """Return all names, those that differ in numbers as one: `layers.*.bias (12), lm_head.weight`."""
    counted = Counter(re.sub(r"(?<![^.])\d+(?=\.)", "*", name) for name in names)
    return ", ".join(name if "*" not in name else f"{name} ({n})" for name, n in counted.items())


def training_cost(trainings: Trainings) -> dict[str, Any]:
    """Return the cost TC = Σₘ |D⁽ᵐ⁾| / |D| as values of JSON; empty if it is unknown (arXiv:2602.05787).

    `times` is the cost, and `members` has the terms of its sum. All data are the union of the trainings'
    datasets by name; if trainings give different sizes for a dataset, the largest counts.
    """
    facts = trainings.values()
    if not facts or not all(training.get("datasets") for training in facts):
        return {}
    of = _count_all_rows(trainings)
    rows = {
        name: sum(int(used["rows"]) for used in training["datasets"].values())
        for name, training in trainings.items()
    }
    work = {
        key: round(sum(training[key] for training in facts), 3)
        for key in _WORK
        if all(training.get(key) is not None for training in facts)
    }
    return {
        "times": round(sum(rows.values()) / of, 6),
        "members": {name: round(count / of, 6) for name, count in rows.items()},
        **{"rows": sum(rows.values()), "of": of},
        **work,
    }


def _count_all_rows(trainings: Trainings) -> int:
    sizes: dict[str, int] = {}
    for training in trainings.values():
        for name, used in training["datasets"].items():
            sizes[name] = max(sizes.get(name, 0), int(used["of"]))
    return sum(sizes.values())


def _find_trainings(models: Mapping[str, Artifact | None]) -> dict[str, Mapping[str, Any]]:
    """Return the trainings behind the models of steps; empty if the trainings of one model are unknown."""
    trainings = [_list_trainings(step, artifact) for step, artifact in models.items()]
    if not all(trainings):
        return {}
    return {name: training for each in trainings for name, training in each.items()}


def _list_trainings(name: str, artifact: Artifact | None) -> dict[str, Mapping[str, Any]]:
    """Return the trainings behind the model of step `name`: the step, or those of a merge's models.

    Not listed are trainings that a member itself started from, and models from outside the run.
    """
    details = artifact.details if artifact is not None else {}
    if isinstance(details.get("trained"), Mapping):
        return dict(details["trained"])
    if "datasets" not in details:
        return {}
    datasets = {
        data: {"rows": used["rows"], "of": used["of"]} for data, used in details["datasets"].items()
    }
    return {name: {"datasets": datasets, **{k: details[k] for k in _WORK if k in details}}}


def compute_cost_details(found: Sequence[tuple[ModelRef, Model]]) -> dict[str, Any]:
    """Return the cost of the trainings behind a merge's models, as details of its artifact."""
    trainings = _find_trainings(
        {reference.step: m.artifact for reference, m in found if reference.step is not None}
    )
    cost = training_cost(trainings)
    return {"training_cost": cost, "trained": trainings} if cost else {}

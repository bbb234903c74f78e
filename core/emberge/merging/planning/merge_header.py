"""Metadata of a merge in the headers of its weight files; loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emberge.merging.merge_plan import MergePlan
from emberge.merging.request import MergeInput
from emberge.merging.stage_options import plain_stage
from emberge.tensor_files import HEADER, header_texts, versions

__all__ = ["header_of"]


def header_of(plan: MergePlan, given: Mapping[str, Any]) -> dict[str, str]:
    """Build the metadata of a merge's weight files: models, weights, content hashes, method, seed, versions.

    `given` overrides it, values that are no text as JSON; a mapping under "emberge" adds to ours. Nothing in
    it depends on the paths of the models.
    """
    request = plan.request
    facts: dict[str, Any] = {
        "strategy": [plain_stage(link) for link in request.strategy],
        "models": {m.name: _model(m, plan.weights.get(m.name)) for m in request.inputs},
        "seed": request.seed,
        "dtype": request.dtype,
        "versions": versions(),
    }
    if request.rules:
        facts["rules"] = {
            rule.filter: [plain_stage(link) for link in rule.strategy] for rule in request.rules
        }
    if request.base is not None:
        facts["base"] = {
            "name": request.base.name,
            **_model(request.base, plan.weights.get(request.base.name)),
        }
    ours = given.get(HEADER)
    header: dict[str, Any] = {**given, HEADER: facts}
    if isinstance(ours, Mapping):
        header[HEADER] = {**facts, **ours}
    return header_texts(header)


def _model(model: MergeInput, weight: float | None) -> dict[str, Any]:
    facts = {"weight": weight, "content": model.fingerprint or None}
    return {key: value for key, value in facts.items() if value is not None}

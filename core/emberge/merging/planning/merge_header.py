"""What a merge writes of itself into the headers of its weights; loads no torch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from emberge.contracts.reference import Reference
from emberge.contracts.schedule import PerTensor
from emberge.contracts.stage import Stage
from emberge.merging.stage_options import stage_name

if TYPE_CHECKING:
    from emberge.merging.planning.plan_merge import MergeInput, MergePlan

__all__ = ["HEADER", "header_of", "plain_stage", "read_provenance", "versions"]

HEADER = "emberge"
"""The key of a safetensors header under which it stands, as JSON."""

_VERSIONS = ("emberge", "torch", "transformers", "safetensors")


def versions() -> dict[str, str]:
    """Versions of the packages that a result's bytes may depend on, found without importing them."""
    found = {}
    for name in _VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def header_of(
    plan: MergePlan, *, seed: int, dtype: str, given: Mapping[str, Any]
) -> dict[str, str]:
    """The metadata of a merge's weight files: models with weights and content hashes, method, seed, versions.

    `given` is laid over it, values that are no text as JSON; a mapping under "emberge" adds to ours. Nothing
    in it depends on where the models lie.
    """
    request = plan.request
    facts: dict[str, Any] = {
        "strategy": [plain_stage(link) for link in request.strategy],
        "models": {m.name: _model(m, plan.weights.get(m.name)) for m in request.inputs},
        "seed": seed,
        "dtype": dtype,
        "versions": versions(),
    }
    if request.rules:
        facts["rules"] = {
            rule.filter: [plain_stage(link) for link in rule.strategy] for rule in request.rules
        }
    if request.base is not None:
        facts["base"] = {"name": request.base.name, **_model(request.base, None)}
    ours = given.get(HEADER)
    header: dict[str, Any] = {**given, HEADER: facts}
    if isinstance(ours, Mapping):
        header[HEADER] = {**facts, **ours}
    return {k: v if isinstance(v, str) else json.dumps(v, default=str) for k, v in header.items()}


def read_provenance(metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """What a header's metadata says of a merge; None when it is not of ours or damaged."""
    try:
        found = json.loads(metadata.get(HEADER, ""))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def plain_stage(stage: Stage) -> Mapping[str, Any] | str:
    """A link as it would stand in a recipe, without options that have their defaults."""
    options: dict[str, Any] = {}
    for option in dataclasses.fields(stage):
        value = getattr(stage, option.name)
        if value != _default(option):
            options[option.name] = _plain(value)
    name = stage_name(stage)
    return {name: options} if options else name


def _default(option: dataclasses.Field[Any]) -> Any:
    """What an option has when nobody sets it; `MISSING` when somebody must."""
    if option.default_factory is not dataclasses.MISSING:
        return option.default_factory()
    return option.default


def _plain(value: Any) -> Any:
    if isinstance(value, Stage):
        return plain_stage(value)
    if isinstance(value, PerTensor):
        return value.plain()
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return value.text if isinstance(value, Reference) else value


def _model(model: MergeInput, weight: float | None) -> dict[str, Any]:
    said = {"weight": weight, "content": model.fingerprint or None}
    return {key: value for key, value in said.items() if value is not None}

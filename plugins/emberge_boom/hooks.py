"""BOOM: bagging-based model merging (arXiv:2602.05787)."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl


@hookimpl
def register_samplers() -> Mapping[str, str]:
    return {
        "bagging": "emberge_boom.samplers.bagging:Bagging",
        "cluster": "emberge_boom.samplers.by_study:Cluster",
        "conflict": "emberge_boom.samplers.by_study:Conflict",
        "core_subset": "emberge_boom.samplers.core_subset:CoreSubset",
        "keep": "emberge_boom.samplers.keep:Keep",
    }


@hookimpl
def register_steps() -> Mapping[str, str]:
    return {"interactions": "emberge_boom.study.interactions:Interactions"}

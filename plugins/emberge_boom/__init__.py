"""BOOM: bagging-based model merging (arXiv:2602.05787)."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Sampler, Step, hookimpl


@hookimpl
def register_samplers() -> Mapping[str, type[Sampler]]:
    from emberge_boom.samplers.bagging import Bagging
    from emberge_boom.samplers.cluster import Cluster
    from emberge_boom.samplers.conflict import Conflict
    from emberge_boom.samplers.core_subset import CoreSubset
    from emberge_boom.samplers.keep import Keep

    return {
        "bagging": Bagging,
        "cluster": Cluster,
        "conflict": Conflict,
        "core_subset": CoreSubset,
        "keep": Keep,
    }


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    from emberge_boom.study.interactions import Interactions

    return {"interactions": Interactions}

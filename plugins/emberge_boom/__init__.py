"""BOOM: bagging-based model merging (arXiv:2602.05787)."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Sampler, hookimpl


@hookimpl
def register_samplers() -> Mapping[str, type[Sampler]]:
    from emberge_boom.bagging import Bagging
    from emberge_boom.core_subset import CoreSubset

    return {"bagging": Bagging, "core_subset": CoreSubset}

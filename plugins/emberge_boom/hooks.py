"""BOOM: bagging-based model merging (arXiv:2602.05787)."""

from __future__ import annotations

from emberge import make_hook

register_samplers = make_hook(
    bagging="emberge_boom.samplers.bagging:Bagging",
    cluster="emberge_boom.samplers.by_study:Cluster",
    conflict="emberge_boom.samplers.by_study:Conflict",
    core_subset="emberge_boom.samplers.core_subset:CoreSubset",
    keep="emberge_boom.samplers.keep:Keep",
)
register_steps = make_hook(interactions="emberge_boom.study.interactions:Interactions")

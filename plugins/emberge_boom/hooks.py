"""BOOM: bagging-based model merging (arXiv:2602.05787)."""

from __future__ import annotations

from emberge import make_hook

register_samplers = make_hook(
    bagging="emberge_boom.bagging:Bagging",
    cluster="emberge_boom.study_samplers:Cluster",
    conflict="emberge_boom.study_samplers:Conflict",
    core_subset="emberge_boom.core_subset:CoreSubset",
    keep="emberge_boom.keep:Keep",
)
register_steps = make_hook(interactions="emberge_boom.interactions:Interactions")

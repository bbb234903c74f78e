"""Evaluation with mteb's own evaluators; the only importer of mteb."""

from __future__ import annotations

from emberge import make_hook

register_evaluators = make_hook(mteb="emberge_mteb.evaluator:Mteb")

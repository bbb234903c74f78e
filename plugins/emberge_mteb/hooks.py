"""Evaluation with mteb's own evaluators; the only importer of mteb."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl


@hookimpl
def register_evaluators() -> Mapping[str, str]:
    return {"mteb": "emberge_mteb.evaluator:Mteb"}

"""Evaluation with mteb's own evaluators; the only importer of mteb."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Evaluator, hookimpl


@hookimpl
def register_evaluators() -> Mapping[str, type[Evaluator]]:
    from emberge_mteb.evaluator import Mteb

    return {"mteb": Mteb}

"""Evaluation: models are scored, compared with intervals, checked against requirements, and chosen from."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl


@hookimpl
def register_steps() -> Mapping[str, str]:
    return {
        "evaluate": "emberge_evaluate.evaluate_step:Evaluate",
        "probe_sets": "emberge_evaluate.probe_sets:ProbeSets",
        "select": "emberge_evaluate.select_step:Select",
    }


@hookimpl
def register_evaluators() -> Mapping[str, str]:
    return {"mean_loss": "emberge_evaluate.mean_loss:MeanLoss"}

"""Evaluation: models are scored, compared with intervals, checked against requirements, and chosen from."""

from __future__ import annotations

from emberge import make_hook

register_steps = make_hook(
    evaluate="emberge_evaluate.evaluate_step:Evaluate",
    probe_sets="emberge_evaluate.probe_sets:ProbeSets",
    select="emberge_evaluate.select_step:Select",
)
register_evaluators = make_hook(mean_loss="emberge_evaluate.mean_loss:MeanLoss")

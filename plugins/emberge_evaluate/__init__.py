"""Evaluation: models are scored, compared with intervals, checked against requirements, and chosen from."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Evaluator, Step, hookimpl


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    from emberge_evaluate.evaluate_step import Evaluate
    from emberge_evaluate.select.select_step import Select

    return {"evaluate": Evaluate, "select": Select}


@hookimpl
def register_evaluators() -> Mapping[str, type[Evaluator]]:
    from emberge_evaluate.fine_tuning.fine_tuned import FineTuned
    from emberge_evaluate.held_out_loss import HeldOutLoss
    from emberge_evaluate.token_loss import TokenLossOnTexts
    from emberge_evaluate.training_loss import TrainingLoss

    return {
        "fine_tuned": FineTuned,
        "held_out_loss": HeldOutLoss,
        "token_loss": TokenLossOnTexts,
        "training_loss": TrainingLoss,
    }

"""Evaluation: models scored side by side, compared with intervals, and checked against requirements."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Step, hookimpl


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    from emberge_evaluate.evaluate_step import Evaluate

    return {"evaluate": Evaluate}

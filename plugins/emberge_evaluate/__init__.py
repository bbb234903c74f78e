"""Evaluation: models scored side by side, compared with intervals, held to requirements, and chosen from."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Step, hookimpl


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    from emberge_evaluate.evaluate_step import Evaluate
    from emberge_evaluate.select_step import Select

    return {"evaluate": Evaluate, "select": Select}

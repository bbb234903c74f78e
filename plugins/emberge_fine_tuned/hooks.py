"""Fine-tuning as an evaluation: models are trained on tasks with a head on top, and tested."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl


@hookimpl
def register_evaluators() -> Mapping[str, str]:
    return {"fine_tuned": "emberge_fine_tuned.fine_tuned:FineTuned"}

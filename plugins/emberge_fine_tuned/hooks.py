"""Fine-tuning as an evaluation: models are trained on tasks with a head on top, and tested."""

from __future__ import annotations

from emberge import make_hook

register_evaluators = make_hook(fine_tuned="emberge_fine_tuned.fine_tuned:FineTuned")

"""Progress of a run in a terminal."""

from emberge_terminal.progress import (
    metric_logged,
    run_finished,
    run_started,
    step_failed,
    step_finished,
    step_progressed,
    step_skipped,
    step_started,
    step_warned,
)

__all__ = [
    "metric_logged",
    "run_finished",
    "run_started",
    "step_failed",
    "step_finished",
    "step_progressed",
    "step_skipped",
    "step_started",
    "step_warned",
]  # hooks

"""The folders of a run's results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from emberge import StepResult


def folders(results: Mapping[str, StepResult]) -> dict[str, Path]:
    """The folder of each step's result, by the step's id."""
    return {step: result.path for step, result in results.items()}

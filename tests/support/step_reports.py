"""Reports of progress as listeners of a run get them, without the pauses between them."""

from __future__ import annotations

from typing import Any

import pytest
from emberge.recipes.run.step_run import StepRun

Report = tuple[float, float, str, str]


def record_reports(monkeypatch: pytest.MonkeyPatch, step: str) -> list[Report]:
    """A list that gets every report of a step that runs in this process."""
    reports: list[Report] = []

    def record(workspace: Any, *report: Any) -> None:
        if workspace.id == step:
            reports.append(report)

    monkeypatch.setattr(StepRun, "_forward_progress", record)
    return reports


def assert_never_decreases(reports: list[Report], total: int, unit: str) -> None:
    """Every report counts the same parts, and none counts fewer than the one before."""
    assert {report[1:3] for report in reports} == {(total, unit)}
    done = [report[0] for report in reports]
    assert done == sorted(done)
    assert 0 == done[0] < done[-1]

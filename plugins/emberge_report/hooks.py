"""Reports and model cards of a run."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl

from emberge_report.write_card import hear_event

__all__ = ["hear_event"]  # hooks


@hookimpl
def register_steps() -> Mapping[str, str]:
    return {"report": "emberge_report.report_step:Report"}

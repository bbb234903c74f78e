"""Reports and model cards of a run."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl

from emberge_report.write_card import card_of_finished, card_of_skipped, card_origin

__all__ = ["card_of_finished", "card_of_skipped", "card_origin"]  # hooks


@hookimpl
def register_steps() -> Mapping[str, str]:
    return {"report": "emberge_report.report_step:Report"}

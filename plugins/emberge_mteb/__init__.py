"""Evaluation with mteb's own evaluators; the only importer of mteb."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl

from emberge_mteb.leaderboard.board import tasks_trained_on, write_board

__all__ = ["tasks_trained_on", "write_board"]  # hooks


@hookimpl
def register_evaluators() -> Mapping[str, str]:
    return {"mteb": "emberge_mteb.evaluator:Mteb"}

"""Cards of the models of a run."""

from __future__ import annotations

from pathlib import Path

from emberge import hookimpl
from emberge.contracts import Event, RunStarted, StepFinished

CARD = "README.md"
# Folder of a run's recipe, by its OUT: relative references are relative to it.
_ORIGINS: dict[Path, Path] = {}


@hookimpl
def hear_event(event: Event) -> None:
    """Write the card of a new model."""
    if isinstance(event, RunStarted):
        folder = event.recipe.parent.resolve() if event.recipe is not None else Path.cwd()
        _ORIGINS[event.out.resolve()] = folder
    elif isinstance(event, StepFinished):
        from emberge.results import write_with_record

        from emberge_report.card import write_card

        if event.artifact.kind == "model":
            recipe_folder = _ORIGINS.get(event.out.resolve())
            card = write_card(event.step, event.folder, event.artifact, recipe_folder)
            write_with_record(event.folder.resolve(), CARD, card)

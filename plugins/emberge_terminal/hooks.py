"""Progress of a run in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emberge import hookimpl

if TYPE_CHECKING:
    from emberge.contracts import Event


@hookimpl
def hear_event(event: Event) -> None:
    """Show an event of a run, unless the run is quiet."""
    from emberge_terminal.progress import show_event

    show_event(event)

"""Progress of a run in a terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import hookimpl

if TYPE_CHECKING:
    from emberge.contracts import Event

    from emberge_terminal.progress import RunView

# Views of the runs of this process that are not quiet, by their OUT; a view is removed when its run ends.
_VIEW_BY_OUT: dict[Path, RunView] = {}


@hookimpl
def hear_event(event: Event) -> None:
    """Show an event in the view of its run, unless the run is quiet."""
    from emberge.contracts import RunFinished, RunStarted, StepEvent

    if isinstance(event, RunStarted) and not event.quiet:
        from emberge_terminal.progress import RunView

        _VIEW_BY_OUT[event.out] = RunView(sys.stdout)
    elif event.out in _VIEW_BY_OUT and isinstance(event, RunFinished):
        _VIEW_BY_OUT.pop(event.out).close()
    elif event.out in _VIEW_BY_OUT and isinstance(event, StepEvent):
        _VIEW_BY_OUT[event.out].show(event)

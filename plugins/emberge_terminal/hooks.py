"""Progress of a run in a terminal."""

from emberge_terminal.progress import hear_event

__all__ = ["hear_event"]  # hooks

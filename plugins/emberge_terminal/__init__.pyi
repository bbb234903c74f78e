"""Public names of emberge_terminal, each with the module that defines it."""

from .progress import RunView as RunView

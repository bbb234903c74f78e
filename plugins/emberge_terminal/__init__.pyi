"""Public names of emberge_terminal, each with the module that defines it."""

from .progress import open_view as open_view

"""Public names of emberge_local, each with the module that defines it."""

from .local import Local as Local

"""Public names of emberge_hub, each with the module that defines it."""

from .hooks import locate_model as locate_model

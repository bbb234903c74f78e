"""Models found on a hub."""

from emberge_hub.hub import locate_model

__all__ = ["locate_model"]  # a hook

"""Models found on hubs, in buckets, on web servers and in packages."""

from emberge_hub.locate import locate_model

__all__ = ["locate_model"]  # a hook

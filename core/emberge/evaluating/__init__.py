"""Scores: measured once per model content and task, kept on disk, and grouped by task."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

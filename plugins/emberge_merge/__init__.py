"""Merging: every method as a strategy or transform, and the steps that merge models and adapters."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Checks of laws (properties that every component of a kind must have), to be called from plugins' tests."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

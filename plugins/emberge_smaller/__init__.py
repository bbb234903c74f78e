"""Smaller models: fewer layers, students of teachers, and a vocabulary of what a corpus needs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

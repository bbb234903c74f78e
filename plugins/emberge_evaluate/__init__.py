"""Evaluation: scoring of models, comparisons with intervals, checks of requirements, and selection."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

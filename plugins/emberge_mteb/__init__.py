"""Evaluation with mteb's own evaluators; the only importer of mteb."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

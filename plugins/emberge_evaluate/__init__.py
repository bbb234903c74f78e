"""Evaluation: models are scored, compared with intervals, checked against requirements, and chosen from."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Embedding spaces: a model's passport (space.json), and checks whether two models' vectors may be mixed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

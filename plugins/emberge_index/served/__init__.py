"""Vectors that others made, a server's or stored ones, beside a model's own: the same, and if not, why."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

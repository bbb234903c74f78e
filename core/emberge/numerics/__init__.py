"""Arithmetic that several rooms share: nearest rows, sums, reproducible noise, kernels of rows."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

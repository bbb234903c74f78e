"""Training: the `train` step, its losses and samplers, and evaluation during a training."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Fine-tuning as an evaluation: models are trained on tasks with a head on top, and tested."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

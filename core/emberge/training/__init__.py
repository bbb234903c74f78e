"""Training one model: a plan of batches, tables of examples, and the loop over them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Vector indexes that survive a change of the model: what is translated, bridged, compared and refused.

A step or verb that reads, writes or compares the vectors of two models belongs here.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

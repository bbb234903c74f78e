"""Files of vectors, read from any format and rewritten by a map in bounded memory; the verb `translate`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

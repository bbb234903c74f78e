"""Vector indexes that survive a change of the model, by translation, bridges and comparisons.

A step or verb that reads, writes or compares the vectors of two models belongs here. Three subpackages have
their own public interfaces: `translation` fits maps between two models, `vectors` reads and rewrites files,
and `space` checks whether vectors of two models may be mixed. The other modules compute the order in which
documents are embedded again (`refresh_*`), new thresholds of cosine (`threshold*`), and queries whose hits
change (`diff_queries`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Results of steps on disk: the folder of a run, provenance, lineage, and leftovers of runs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

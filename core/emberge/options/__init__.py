"""Options of components: from YAML to typed values, their JSON Schema and their documentation."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

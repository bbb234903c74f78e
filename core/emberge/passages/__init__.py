"""Documents of people, as text, Markdown, web pages, code or PDF, cut into passages at headings."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

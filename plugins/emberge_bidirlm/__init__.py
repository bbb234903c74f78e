"""BidirLM: causal language models made encoders, of text and of more (arXiv:2604.02045)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

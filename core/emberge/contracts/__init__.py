"""Contracts: the interfaces that plugins implement and runners call; importing them loads no torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

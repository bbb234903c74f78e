"""Models for servers and other runtimes: ONNX files, each compared with torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Models for servers and other runtimes: ONNX files, each compared with torch."""

from __future__ import annotations

from emberge import make_hook

register_steps = make_hook(export="emberge_export.export_step:Export")

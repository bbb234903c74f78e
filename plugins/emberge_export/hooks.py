"""Models for servers and other runtimes: ONNX files, each compared with torch."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl


@hookimpl
def register_steps() -> Mapping[str, str]:
    return {"export": "emberge_export.export_step:Export"}

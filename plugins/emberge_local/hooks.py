"""Launcher of steps side by side on this machine."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl


@hookimpl
def register_launchers() -> Mapping[str, str]:
    return {"local": "emberge_local.local:Local"}

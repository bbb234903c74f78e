"""Launcher of steps side by side on this machine."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Launcher, hookimpl


@hookimpl
def register_launchers() -> Mapping[str, type[Launcher]]:
    from emberge_local.local import Local

    return {"local": Local}

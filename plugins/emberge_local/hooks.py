"""Launcher of steps side by side on this machine."""

from __future__ import annotations

from emberge import make_hook

register_launchers = make_hook(local="emberge_local.local:Local")

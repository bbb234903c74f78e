"""Ready steps on a Ray cluster: the only plugin that imports Ray."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Launcher, hookimpl


@hookimpl
def register_launchers() -> Mapping[str, type[Launcher]]:
    from emberge_ray.launcher import Ray

    return {"ray": Ray}

"""Ready steps on a Ray cluster: the only plugin that imports Ray."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl


@hookimpl
def register_launchers() -> Mapping[str, str]:
    return {"ray": "emberge_ray.cluster:Ray"}

"""Ready steps on a Ray cluster: the only plugin that imports Ray."""

from __future__ import annotations

from emberge import make_hook

register_launchers = make_hook(ray="emberge_ray.cluster:Ray")

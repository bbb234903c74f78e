"""Public names of emberge_ray, each with the module that defines it."""

from .cluster import Ray as Ray

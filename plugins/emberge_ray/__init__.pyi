"""Public names of emberge_ray, each with the module that defines it."""

from .launcher import Ray as Ray

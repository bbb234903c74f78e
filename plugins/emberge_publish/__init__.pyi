"""Public names of emberge_publish, each with the module that defines it."""

from .publication import Publication as Publication

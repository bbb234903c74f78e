"""Public names of emberge_export, each with the module that defines it."""

from .export_step import Export as Export

"""Public names of emberge_mergekit, each with the module that defines it."""

from .library.strategy import Mergekit as Mergekit

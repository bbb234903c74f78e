"""Public names of emberge_mergekit, each with the module that defines it."""

from .strategy import Mergekit as Mergekit

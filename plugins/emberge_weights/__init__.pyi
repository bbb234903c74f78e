"""Public names of emberge_weights, each with the module that defines it."""

from .weight_sets import SetEntry as SetEntry
from .weight_sets import read_sets as read_sets

"""Public names of emberge_weights, each with the module that defines it."""

from .judged_sets import SetEntry as SetEntry
from .judged_sets import read_sets as read_sets

"""Public names of emberge_weights, each with the module that defines it."""

from .inputs.weight_sets import SetEntry as SetEntry
from .inputs.weight_sets import read_sets as read_sets
from .layers.fit import fit_coefficients as fit_coefficients

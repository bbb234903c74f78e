"""Public names of emberge_weights, each with the module that defines it."""

from .layers.fit import fit_coefficients as fit_coefficients
from .mixture.worth import extrapolate as extrapolate
from .mixture.worth import find_worth as find_worth
from .mixture.worth import leave_one_out as leave_one_out
from .weight_sets import SetEntry as SetEntry
from .weight_sets import read_sets as read_sets

"""Public names of emberge_statistics, each with the module that defines it."""

from .weight_comparison import sort_layers as sort_layers
from .weight_sums import compare_weights as compare_weights

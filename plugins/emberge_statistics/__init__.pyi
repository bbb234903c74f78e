"""Public names of emberge_statistics, each with the module that defines it."""

from .compare_weights import compare_weights as compare_weights
from .weight_comparison import sort_layers as sort_layers

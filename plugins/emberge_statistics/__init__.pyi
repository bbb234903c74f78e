"""Public names of emberge_statistics, each with the module that defines it."""

from .measure_weights import compare_weights as compare_weights
from .weight_comparison import layer_order as layer_order

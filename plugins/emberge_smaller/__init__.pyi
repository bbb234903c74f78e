"""Public names of emberge_smaller, each with the module that defines it."""

from .cut_layers_step import CutLayers as CutLayers
from .layers import LayerStack as LayerStack
from .layers import cut_layers as cut_layers

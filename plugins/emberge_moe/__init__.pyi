"""Public names of emberge_moe, each with the module that defines it."""

from .modeling_emberge_routed import FEED_FORWARD as FEED_FORWARD
from .modeling_emberge_routed import EmbergeRoutedConfig as EmbergeRoutedConfig
from .modeling_emberge_routed import EmbergeRoutedForMaskedLM as EmbergeRoutedForMaskedLM
from .modeling_emberge_routed import EmbergeRoutedModel as EmbergeRoutedModel
from .routed_backbone import Routed as Routed

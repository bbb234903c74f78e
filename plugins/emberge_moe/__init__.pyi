"""Public names of emberge_moe, each with the module that defines it."""

from .architecture.modeling_emberge_routed import FEED_FORWARD as FEED_FORWARD
from .architecture.modeling_emberge_routed import EmbergeRoutedConfig as EmbergeRoutedConfig
from .architecture.modeling_emberge_routed import (
    EmbergeRoutedForMaskedLM as EmbergeRoutedForMaskedLM,
)
from .architecture.modeling_emberge_routed import EmbergeRoutedModel as EmbergeRoutedModel
from .routed import Routed as Routed

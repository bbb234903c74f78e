"""Public names of emberge_bidirlm, each with the module that defines it."""

from .as_encoder import AsEncoder as AsEncoder
from .as_encoder import build_encoder_config as build_encoder_config
from .as_encoder import build_encoder_layout as build_encoder_layout
from .as_encoder import find_mask_token as find_mask_token
from .compose.compose_step import Compose as Compose
from .compose.composition import Composition as Composition
from .compose.specialist import Specialist as Specialist

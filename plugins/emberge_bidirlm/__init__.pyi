"""Public names of emberge_bidirlm, each with the module that defines it."""

from .as_encoder import AsEncoder as AsEncoder
from .as_encoder import build_encoder_config as build_encoder_config
from .as_encoder import build_encoder_layout as build_encoder_layout
from .compose_step import Compose as Compose
from .composition import Composition as Composition
from .mask_token import find_mask_token as find_mask_token
from .specialist import Specialist as Specialist

"""Public names of emberge_encoder, each with the module that defines it."""

from .kinds.cross_encoder import CrossEncoder as CrossEncoder
from .kinds.multi_vector import MultiVector as MultiVector
from .kinds.splade import Splade as Splade
from .lora import Lora as Lora
from .text_encoder import TextEncoder as TextEncoder
from .text_model import TextModel as TextModel

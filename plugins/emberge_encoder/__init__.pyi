"""Public names of emberge_encoder, each with the module that defines it."""

from .embedding_store import EmbeddingStore as EmbeddingStore
from .embedding_store import Vectors as Vectors
from .layout import Layout as Layout
from .layout import write_modalities as write_modalities
from .static_folder import is_static_model as is_static_model
from .static_folder import is_static_result as is_static_result
from .static_folder import read_static_dimension as read_static_dimension
from .static_folder import write_static_model as write_static_model
from .stock.cross_encoder import CrossEncoder as CrossEncoder
from .stock.cross_encoder import CrossEncoderFacts as CrossEncoderFacts
from .stock.multi_vector import MultiVector as MultiVector
from .stock.splade import Splade as Splade
from .text.attention_config import Attention as Attention
from .text.attention_config import is_causal as is_causal
from .text.attention_config import load_text_config as load_text_config
from .text.attention_config import read_declared_attention as read_declared_attention
from .text.attention_config import switch_attention as switch_attention
from .text.located_texts import LocatedText as LocatedText
from .text.located_texts import LocatingEncoder as LocatingEncoder
from .text.lora import Lora as Lora
from .text.text_model import TextModel as TextModel
from .text.tokenizer import load_tokenizer as load_tokenizer
from .text.tokenizer import require_vocabulary as require_vocabulary
from .text.trunk_weights import build_config as build_config
from .text_encoder import TextEncoder as TextEncoder

"""Public names of emberge_encoder, each with the module that defines it."""

from .accepted_folders import CrossEncoderFacts as CrossEncoderFacts
from .accepted_folders import is_static_model as is_static_model
from .accepted_folders import read_static_dimension as read_static_dimension
from .attention_config import Attention as Attention
from .attention_config import is_causal as is_causal
from .attention_config import load_text_config as load_text_config
from .attention_config import read_declared_attention as read_declared_attention
from .attention_config import switch_attention as switch_attention
from .embedding_store import EmbeddingStore as EmbeddingStore
from .embedding_store import Vectors as Vectors
from .kinds.cross_encoder import CrossEncoder as CrossEncoder
from .kinds.multi_vector import MultiVector as MultiVector
from .kinds.splade import Splade as Splade
from .kinds.stock_loading import read_routes as read_routes
from .layout import Layout as Layout
from .layout import write_modalities as write_modalities
from .layout import write_static_model as write_static_model
from .located_texts import LocatedText as LocatedText
from .located_texts import LocatingEncoder as LocatingEncoder
from .lora import Lora as Lora
from .text_encoder import TextEncoder as TextEncoder
from .text_model import TextModel as TextModel
from .tokenizer import load_tokenizer as load_tokenizer
from .tokenizer import require_vocabulary as require_vocabulary
from .trunk_weights import build_config as build_config

"""Public names of emberge_smaller, each with the module that defines it."""

from .cut_layers_step import CutLayers as CutLayers
from .distil_step import Distil as Distil
from .layers import LayerStack as LayerStack
from .layers import cut_layers as cut_layers
from .static_model_step import StaticModel as StaticModel
from .student import Student as Student
from .vocabulary.cut_tokenizer import CutTokenizer as CutTokenizer
from .vocabulary.kept_tokens import choose_tokens as choose_tokens
from .vocabulary.subword_vocabulary import SubwordVocabulary as SubwordVocabulary
from .vocabulary.trim_vocabulary_step import TrimVocabulary as TrimVocabulary

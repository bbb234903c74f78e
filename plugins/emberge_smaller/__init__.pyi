"""Public names of emberge_smaller, each with the module that defines it."""

from .cut_layers_step import CutLayers as CutLayers
from .cut_layers_step import LayerStack as LayerStack
from .distil_step import Distil as Distil
from .distil_step import Student as Student
from .static_model_step import StaticModel as StaticModel
from .vocabulary.cut_tokenizer import CutTokenizer as CutTokenizer
from .vocabulary.kept_tokens import choose_tokens as choose_tokens
from .vocabulary.subword_vocabulary import SubwordVocabulary as SubwordVocabulary
from .vocabulary.trim_vocabulary_step import TrimVocabulary as TrimVocabulary

"""Public names of emberge_smaller, each with the module that defines it."""

from .best_layers import choose_best as choose_best
from .cut_layers_step import CutLayers as CutLayers
from .distil_step import Distil as Distil
from .layers import BestLayers as BestLayers
from .layers import LayerStack as LayerStack
from .layers import cut_layers as cut_layers
from .pair_encoders_step import PairEncoders as PairEncoders
from .rotate_step import Rotate as Rotate
from .rotations import fit_rotation as fit_rotation
from .rotations import measure_neighbours as measure_neighbours
from .static_model_step import StaticModel as StaticModel
from .student import Student as Student
from .vocabulary.cut_tokenizer import CutTokenizer as CutTokenizer
from .vocabulary.kept_tokens import choose_tokens as choose_tokens
from .vocabulary.subword_vocabulary import SubwordVocabulary as SubwordVocabulary
from .vocabulary.trim_vocabulary_step import TrimVocabulary as TrimVocabulary

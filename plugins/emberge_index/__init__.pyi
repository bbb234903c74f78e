"""Public names of emberge_index, each with the module that defines it."""

from .refresh_verb import order_of as order_of
from .translation.folds import fit_folds as fit_folds
from .translation.maps import Kind as Kind
from .translation.maps import Map as Map
from .translation.maps import Moments as Moments
from .translation.maps import fit_map as fit_map
from .translation.translation_file import FILE as FILE
from .translation.translation_file import SpaceOf as SpaceOf
from .translation.translation_file import Translation as Translation
from .translation.translation_file import TranslationHeader as TranslationHeader
from .translation.translation_file import are_unit as are_unit
from .translation.translation_file import mahalanobis as mahalanobis
from .translation.translation_file import read_translation as read_translation
from .vectors.mapper import Mapper as Mapper
from .vectors.open_vectors import plan_vectors as plan_vectors
from .vectors.open_vectors import read_vectors as read_vectors
from .vectors.rewrite import WorkFolder as WorkFolder
from .vectors.rewrite import working_on as working_on
from .vectors.translate_verb import translate_file as translate_file

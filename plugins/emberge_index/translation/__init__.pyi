"""Public names of translation, each with the module that defines it."""

from .arms import NEIGHBOURS as NEIGHBOURS
from .arms import gain_kept as gain_kept
from .folds import few_texts as few_texts
from .folds import fit_folds as fit_folds
from .folds import folds_of as folds_of
from .probes import EmbeddedProbes as EmbeddedProbes
from .probes import Probes as Probes
from .probes import Side as Side
from .probes import embed as embed
from .probes import probes_of as probes_of
from .translate_step import Translate as Translate
from .translation_file import SpaceOf as SpaceOf
from .translation_file import Translation as Translation
from .translation_file import TranslationHeader as TranslationHeader
from .translation_file import are_unit as are_unit
from .translation_file import read_translation as read_translation
from .two_models import Fit as Fit
from .two_models import model_problems as model_problems

"""Public names of emberge_evaluate, each with the module that defines it."""

from .bootstrap import resample as resample
from .bootstrap import statistic as statistic
from .evaluate_step import Evaluate as Evaluate
from .evaluate_step import EvaluatedModel as EvaluatedModel
from .seed_groups import read_variables as read_variables

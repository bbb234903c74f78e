"""Public names of emberge_evaluate, each with the module that defines it."""

from .bootstrap import compute_statistic as compute_statistic
from .bootstrap import resample as resample
from .columns import read_variables as read_variables
from .evaluate_step import Evaluate as Evaluate
from .evaluate_step import EvaluatedModel as EvaluatedModel
from .score_table import SINGLE_RUNS as SINGLE_RUNS
from .score_table import ScoreCell as ScoreCell
from .score_table import ScoreRow as ScoreRow
from .score_table import ScoreTable as ScoreTable
from .score_table import build_difference_tables as build_difference_tables
from .score_table import build_table as build_table
from .scores import Comparison as Comparison
from .scores import Estimate as Estimate
from .scores import ScoredTask as ScoredTask
from .scores import Scores as Scores
from .scores import Verdict as Verdict
from .scores import leave_out_parts as leave_out_parts
from .scores_file import read_scores as read_scores
from .scores_file import write_scores as write_scores
from .task_groups import TITLE_BY_DOMAIN as TITLE_BY_DOMAIN
from .task_groups import TITLE_BY_MEAN as TITLE_BY_MEAN

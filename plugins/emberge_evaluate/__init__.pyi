"""Public names of emberge_evaluate, each with the module that defines it."""

from .bootstrap import compute_statistic as compute_statistic
from .bootstrap import resample as resample
from .columns import read_variables as read_variables
from .evaluate_step import Evaluate as Evaluate
from .evaluate_step import EvaluatedModel as EvaluatedModel
from .kept_scores import make_file_name as make_file_name
from .kept_scores import score_tasks as score_tasks
from .score_table import ScoreCell as ScoreCell
from .score_table import ScoreRow as ScoreRow
from .score_table import ScoreTable as ScoreTable
from .score_table import build_difference_tables as build_difference_tables
from .score_table import build_table as build_table
from .scores import MEANS as MEANS
from .scores import Comparison as Comparison
from .scores import Estimate as Estimate
from .scores import Scores as Scores
from .scores import Task as Task
from .scores import Verdict as Verdict
from .scores_file import read_scores as read_scores
from .scores_file import write_scores as write_scores
from .task_groups import DOMAIN_WORDS as DOMAIN_WORDS
from .task_groups import DOMAINS as DOMAINS
from .task_groups import GROUP_OF as GROUP_OF
from .task_groups import list_group_parts as list_group_parts

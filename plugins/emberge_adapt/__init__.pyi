"""Public names of emberge_adapt, each with the module that defines it."""

from .adapt_data import parse_columns as parse_columns
from .adapt_data import recognise_data as recognise_data
from .adapt_outcome import AdaptOutcome as AdaptOutcome
from .adapt_plan import AdaptPlan as AdaptPlan
from .adapt_plan import TrainingSettings as TrainingSettings
from .adapt_plan import choose_training as choose_training
from .adapt_plan import count_held_out_rows as count_held_out_rows
from .adapt_run import adapt as adapt
from .data_facts import DataFacts as DataFacts
from .data_facts import read_data_facts as read_data_facts
from .recipe_text import write_recipe as write_recipe

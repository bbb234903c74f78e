"""Public names of emberge_adapt, each with the module that defines it."""

from .adapt_data import AdaptData as AdaptData
from .adapt_data import read_columns as read_columns
from .adapt_data import recognise_data as recognise_data
from .adapt_outcome import AdaptOutcome as AdaptOutcome
from .adapt_plan import AdaptPlan as AdaptPlan
from .adapt_plan import Training as Training
from .adapt_plan import choose_training as choose_training
from .adapt_plan import hold_out as hold_out
from .adapt_run import AdaptRequest as AdaptRequest
from .adapt_run import adapt as adapt
from .adapt_run import prepare as prepare
from .data_facts import DataFacts as DataFacts
from .data_facts import read_facts as read_facts
from .recipe_text import write_recipe as write_recipe

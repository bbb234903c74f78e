"""Public names of emberge_data, each with the module that defines it."""

from .delimited import Delimited as Delimited
from .json_lines import JsonLines as JsonLines
from .parquet import Parquet as Parquet
from .steps.mine_hard_negatives import read_corpora as read_corpora
from .steps.negative_choice import ChoiceOptions as ChoiceOptions
from .steps.negative_choice import Passages as Passages
from .steps.negative_choice import choose as choose
from .steps.search.exclusions import Exclusions as Exclusions
from .steps.search.exclusions import Lists as Lists
from .steps.search.space import Space as Space
from .steps.teacher import Teacher as Teacher

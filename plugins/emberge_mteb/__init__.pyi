"""Public names of emberge_mteb, each with the module that defines it."""

from .evaluator import Mteb as Mteb
from .hub_tasks import find_instruction as find_instruction
from .hub_tasks import find_split as find_split
from .hub_tasks import list_in_domain_tasks as list_in_domain_tasks
from .local_sets import EvalEntry as EvalEntry

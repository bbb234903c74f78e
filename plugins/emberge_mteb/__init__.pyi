"""Public names of emberge_mteb, each with the module that defines it."""

from .evaluator import Mteb as Mteb
from .hub_tasks import instruction_of as instruction_of
from .hub_tasks import list_in_domain_tasks as list_in_domain_tasks
from .hub_tasks import split_of as split_of
from .local_sets import EvalEntry as EvalEntry
from .local_sets import LocalSet as LocalSet
from .local_tasks import local_task as local_task

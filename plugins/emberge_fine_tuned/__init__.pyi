"""Public names of emberge_fine_tuned, each with the module that defines it."""

from .fine_tuned import FineTuned as FineTuned
from .options import TaskEntry as TaskEntry
from .options import TaskRowSource as TaskRowSource

"""Public names of processes, each with the module that defines it."""

from .rank_processes import LISTENER as LISTENER
from .rank_processes import SECRET as SECRET
from .rank_processes import RanksEnded as RanksEnded
from .rank_processes import adopt_launcher as adopt_launcher
from .rank_processes import rank_and_size as rank_and_size
from .rank_processes import rank_team as rank_team
from .step_process import StepProcess as StepProcess

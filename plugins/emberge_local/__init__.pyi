"""Public names of emberge_local, each with the module that defines it."""

from .local import Local as Local
from .local import StepProcess as StepProcess
from .pool_launcher import PoolLauncher as PoolLauncher
from .pool_launcher import ProcessEnd as ProcessEnd
from .pool_launcher import StepHandle as StepHandle
from .pool_launcher import StepPool as StepPool
from .pool_launcher import StepRequest as StepRequest

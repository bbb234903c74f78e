"""Public names of emberge_export, each with the module that defines it."""

from .export_step import require_same as require_same
from .export_step import too_lossy as too_lossy
from .parity import Parity as Parity
from .parity import measured as measured
from .probe import Probe as Probe
from .runtimes import load_runtime as load_runtime

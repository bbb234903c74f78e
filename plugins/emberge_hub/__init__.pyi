"""Public names of emberge_hub, each with the module that defines it."""

from .hooks import locate_model as locate_model
from .hub import in_package as in_package
from .pickles import convert_pickles as convert_pickles

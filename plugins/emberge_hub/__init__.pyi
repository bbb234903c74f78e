"""Public names of emberge_hub, each with the module that defines it."""

from .hooks import locate_model as locate_model
from .installed_package import find_in_package as find_in_package
from .pickles import convert_pickles as convert_pickles

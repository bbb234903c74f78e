"""Public names of emberge_boom, each with the module that defines it."""

from .bagging import Bagging as Bagging

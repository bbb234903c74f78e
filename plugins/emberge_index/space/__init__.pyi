"""Public names of space, each with the module that defines it."""

from .canaries import probe_texts as probe_texts
from .one_space import ModelSpace as ModelSpace
from .one_space import published_passport as published_passport
from .one_space import space_at as space_at
from .passport import result_passport as result_passport

"""Public names of space, each with the module that defines it."""

from .canaries import CANARIES as CANARIES
from .canaries import LONG_CANARIES as LONG_CANARIES
from .canaries import probe_texts as probe_texts
from .compare import SAME as SAME
from .one_space import ModelSpace as ModelSpace
from .one_space import compare_spaces as compare_spaces
from .one_space import exit_code_of as exit_code_of
from .one_space import published_passport as published_passport
from .one_space import space_at as space_at
from .passport import Passport as Passport
from .passport import result_passport as result_passport

"""Public names of vectors, each with the module that defines it."""

from .checks import map_blocks as map_blocks
from .checks import open_fitting as open_fitting
from .checks import require_space as require_space
from .codes import Codec as Codec
from .mapper import Mapper as Mapper
from .new_codes import build_codec as build_codec
from .open_vectors import plan_vectors as plan_vectors
from .open_vectors import read_vectors as read_vectors
from .pieces import RewritePlan as RewritePlan
from .pieces import block_rows as block_rows
from .rewrite import require_new as require_new
from .stored_bits import require_signs as require_signs

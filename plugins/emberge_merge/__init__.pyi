"""Public names of emberge_merge, each with the module that defines it."""

from .methods.fisher import Fisher as Fisher
from .methods.group import Group as Group
from .methods.sparse.drop_by_rank import compute_chances as compute_chances
from .methods.sparse.sign_consensus import SignConsensus as SignConsensus
from .methods.sparse.trim import Trim as Trim
from .methods.spherical.mean_directions import MultiSlerp as MultiSlerp
from .methods.spherical.model_stock import ModelStock as ModelStock
from .methods.spherical.slerp import Slerp as Slerp
from .methods.weighted_sums import Linear as Linear
from .methods.weighted_sums import Passthrough as Passthrough
from .methods.weighted_sums import TaskArithmetic as TaskArithmetic
from .one_merge import merge as merge
from .one_merge import read_merge_file as read_merge_file
from .steps.found_weights import FoundWeights as FoundWeights

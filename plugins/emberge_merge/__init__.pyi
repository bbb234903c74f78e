"""Public names of emberge_merge, each with the module that defines it."""

from .methods import strategies as strategies
from .methods import transforms as transforms
from .methods.averages.linear import Linear as Linear
from .methods.averages.passthrough import Passthrough as Passthrough
from .methods.averages.task_arithmetic import TaskArithmetic as TaskArithmetic
from .methods.fisher import Fisher as Fisher
from .methods.group import Group as Group
from .methods.sparse.drop_by_rank import chances as chances
from .methods.sparse.sign_consensus import SignConsensus as SignConsensus
from .methods.sparse.trim import Trim as Trim
from .methods.spherical.model_stock import ModelStock as ModelStock
from .methods.spherical.multi_slerp import MultiSlerp as MultiSlerp
from .methods.spherical.slerp import Slerp as Slerp
from .one_merge import merge as merge
from .one_merge import read_merge_file as read_merge_file
from .steps.found_weights import FoundWeights as FoundWeights
from .steps.merge_options import FoundModel as FoundModel

"""Public names of ranks, each with the module that defines it."""

from .fsdp import clip_gradients as clip_gradients
from .fsdp import gather_on_cpu as gather_on_cpu
from .fsdp import gather_weights as gather_weights
from .fsdp import is_split as is_split
from .fsdp import place_like as place_like
from .fsdp import split_weights as split_weights
from .fsdp import sum_gradients as sum_gradients
from .ranks import SINGLE_RANK as SINGLE_RANK
from .ranks import LostRankError as LostRankError
from .ranks import RankGroup as RankGroup
from .ranks import RanksError as RanksError
from .ranks import join_ranks as join_ranks
from .ranks import leave_ranks as leave_ranks
from .ranks import shard_rows as shard_rows

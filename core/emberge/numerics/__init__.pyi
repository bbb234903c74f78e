"""Public names of numerics, each with the module that defines it.

Methods of merging use `draw_uniform`, `take_tensor_like`, `compute_weighted_sum`, `Operation`, `DeltaChange`,
and for their kernels `KernelRows`, `KernelIntegers`, `hash_key`, `map_array`, `LANES` and `add_lanes`.
Losses and encoders use the names of `score_tables`. The runner of merges uses all others.
"""

from .buffers import map_array as map_array
from .buffers import reuse_bytes as reuse_bytes
from .buffers import reuse_tensor as reuse_tensor
from .buffers import take_pooled_array as take_pooled_array
from .buffers import take_tensor_like as take_tensor_like
from .delta_program import DecodedRows as DecodedRows
from .delta_program import DeltaProgram as DeltaProgram
from .delta_program import NoRows as NoRows
from .delta_program import Operation as Operation
from .delta_program import compute_weighted_sum as compute_weighted_sum
from .delta_program import require_count as require_count
from .inner_products import InnerProducts as InnerProducts
from .inner_products import add_lanes as add_lanes
from .noise import draw_uniform as draw_uniform
from .noise import hash_key as hash_key
from .row_kernels import LANES as LANES
from .row_kernels import KernelLibrary as KernelLibrary
from .row_kernels import allows_kernels as allows_kernels
from .row_kernels import describe_kernels as describe_kernels
from .score_tables import apply_blockwise as apply_blockwise
from .score_tables import find_lowest_score as find_lowest_score
from .score_tables import join_rows as join_rows
from .score_tables import log_sum_products as log_sum_products
from .score_tables import scale_to_unit as scale_to_unit
from .stored_rows import KERNEL_DTYPES as KERNEL_DTYPES
from .stored_rows import MAGNITUDE_LIMIT as MAGNITUDE_LIMIT
from .stored_rows import RUN_LENGTH as RUN_LENGTH
from .stored_rows import DeltaChange as DeltaChange
from .stored_rows import KernelIntegers as KernelIntegers
from .stored_rows import KernelRows as KernelRows
from .stored_rows import RowsError as RowsError
from .stored_rows import RowsPlace as RowsPlace
from .stored_rows import StoredRows as StoredRows
from .stored_rows import are_usable as are_usable
from .stored_rows import encode_rows as encode_rows
from .stored_rows import load_kernels as load_kernels

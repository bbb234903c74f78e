"""Public names of tensor_names, each with the module that defines it."""

from .canonical_names import Names as Names
from .canonical_names import is_buffer as is_buffer
from .canonical_names import is_vocabulary as is_vocabulary
from .layers import EMBEDDING_LAYER as EMBEDDING_LAYER
from .layers import LAYER as LAYER
from .layers import PARTS as PARTS
from .layers import Part as Part
from .layers import depths as depths
from .layers import layer_number as layer_number
from .layers import layer_of as layer_of
from .layers import layer_order as layer_order
from .layers import part_of as part_of
from .name_aliases import HEAD as HEAD
from .name_aliases import TIED as TIED
from .name_aliases import prefix_of as prefix_of
from .name_aliases import usual_name as usual_name
from .task_heads import POOLER as POOLER
from .task_heads import head_of as head_of

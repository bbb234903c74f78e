"""Public names of testing, each with the module that defines it."""

from .backbones import check_backbone as check_backbone
from .batches import change_embeddings as change_embeddings
from .batches import draw_embeddings as draw_embeddings
from .batches import with_layers_and_guide as with_layers_and_guide
from .losses import check_loss as check_loss
from .merging import check_strategy as check_strategy
from .samplers import check_sampler as check_sampler

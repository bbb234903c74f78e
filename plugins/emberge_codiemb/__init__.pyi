"""Public names of emberge_codiemb, each with the module that defines it."""

from .layer_softmax import LayerSoftmax as LayerSoftmax
from .mid_nce import MidNCE as MidNCE
from .mixed import Mixed as Mixed
from .pair_losses import PRO as PRO
from .pair_losses import Pearson as Pearson
from .pair_losses import RankKL as RankKL

"""Public names of emberge_codiemb, each with the module that defines it."""

from .layer_softmax import LayerSoftmax as LayerSoftmax
from .losses.mid_nce import MidNCE as MidNCE
from .losses.pearson import Pearson as Pearson
from .losses.pro import PRO as PRO
from .losses.rank_kl import RankKL as RankKL
from .mixed import Mixed as Mixed

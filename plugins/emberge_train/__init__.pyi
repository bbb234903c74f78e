"""Public names of emberge_train, each with the module that defines it."""

from .losses.binary_cross_entropy import BinaryCrossEntropy as BinaryCrossEntropy
from .losses.cosent import CoSENT as CoSENT
from .losses.distillation import EmbeddingDistillation as EmbeddingDistillation
from .losses.distillation import KeepSpace as KeepSpace
from .losses.flops import FLOPS as FLOPS
from .losses.guided_loss import Guide as Guide
from .losses.guided_loss import GuidedLoss as GuidedLoss
from .losses.guided_loss import give_guide as give_guide
from .losses.guided_loss import list_guided_losses as list_guided_losses
from .losses.infonce import InfoNCE as InfoNCE
from .losses.matryoshka import Matryoshka as Matryoshka
from .losses.matryoshka import OuterLoss as OuterLoss
from .losses.score_distillation import KLDistillation as KLDistillation
from .losses.score_distillation import MarginMSE as MarginMSE
from .losses.spread_out import SpreadOut as SpreadOut
from .losses.token_losses import MLM as MLM
from .losses.token_losses import MNTP as MNTP
from .losses.token_losses import CausalLM as CausalLM
from .samplers.batches import Shuffled as Shuffled
from .samplers.mixture import Mixture as Mixture
from .samplers.one_dataset_samplers import BatchShuffle as BatchShuffle
from .samplers.one_dataset_samplers import DatasetSequential as DatasetSequential
from .samplers.one_dataset_samplers import OneDataset as OneDataset
from .samplers.one_dataset_samplers import TaskSequential as TaskSequential
from .samplers.proportional import Proportional as Proportional
from .samplers.two_stage import TwoStage as TwoStage

"""Everything that a rank of a test's training imports, so that ranks are forked with it."""

import emberge.ranks.ranks
import emberge.training.loop.trainer
import emberge_codiemb.pair_losses
import emberge_encoder.text.text_model
import safetensors.torch
import torch
import transformers.models.bert.modeling_bert
from accelerate import PartialState
from emberge_encoder import TextEncoder
from sentence_transformers.sentence_transformer import modules
from torch.distributed.fsdp import fully_shard

__all__ = ["PartialState", "TextEncoder", "emberge", "emberge_codiemb", "emberge_encoder"]
__all__ += ["fully_shard", "modules", "safetensors", "torch", "transformers"]

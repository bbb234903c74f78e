"""Low-rank adapters: small trained factors added to frozen weights."""

from __future__ import annotations

import contextlib
import copy
import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge import CheckpointError, Count, Positive, make_seed


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank factors that are trained on top of frozen weights: W + s · B A with a frozen W.

    Hu et al., 2021, arXiv:2106.09685. `rank` is the rank of the product B A. s is `alpha` / rank, by default
    1. All linear layers of the transformer's blocks get factors. B starts at zero, and A at random numbers,
    the same at each start.

    The training saves an adapter of the model from which it started, and a merge accepts the adapter. With
    `fold` it saves a whole model, with the product added to the weights.
    """

    rank: Count = 16
    alpha: Positive | None = None
    fold: bool = False

    def insert_into(self, trunk: Any, source: Path) -> LoraTrunk:
        """Insert factors into a transformer, freeze its weights, and return both as one trunk.

        Raises:
            CheckpointError: if a layer cannot get factors.
        """
        import torch
        from peft import LoraConfig
        from peft.tuners.lora import LoraModel
        from transformers.pytorch_utils import Conv1D

        targets = _find_linear_names(trunk)
        alpha = self.rank if self.alpha is None else self.alpha
        config = LoraConfig(
            task_type="FEATURE_EXTRACTION",
            r=self.rank,
            lora_alpha=alpha,
            target_modules=targets,
            # GPT-2 stores its weights transposed.
            fan_in_fan_out=any(isinstance(trunk.get_submodule(name), Conv1D) for name in targets),
        )
        with torch.random.fork_rng(), _silence_peft():
            torch.manual_seed(make_seed(0, "lora"))
            try:
                tuner = LoraModel(trunk, {"default": config}, "default")
            except (ValueError, NotImplementedError) as error:
                raise CheckpointError(f"{source}: takes no adapter: {error}") from error
        for parameter in trunk.parameters():
            if parameter.requires_grad:  # small steps would be lost in half precision
                parameter.data = parameter.data.float()
        return LoraTrunk(self, tuner, targets, source)


def _find_linear_names(trunk: Any) -> list[str]:
    """Return the full names of all linear layers in a transformer's blocks."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    from emberge_encoder.text.blocks import find_blocks

    names = {module: name for name, module in trunk.named_modules()}
    modules = (module for block in find_blocks(trunk) for module in block.modules())
    return sorted(names[m] for m in modules if isinstance(m, nn.Linear | Conv1D))


class LoraTrunk:
    """Transformer with factors in it, to be saved as an adapter or folded into a whole model."""

    def __init__(self, options: Lora, tuner: Any, targets: Sequence[str], source: Path) -> None:
        self.options = options
        self._tuner = tuner
        self._targets = list(targets)
        self._source = source

    def fold_factors(self) -> Any:
        """Return a copy of the transformer whose weights have the factors' products added."""
        with _silence_peft():
            return copy.deepcopy(self._tuner).merge_and_unload()

    def save(self, folder: Path, checkpoint: Path) -> None:
        """Write the adapter as peft reads it, with the checkpoint that it belongs to in the header."""
        from emberge.merging import describe_base
        from emberge.model_folder import (
            ADAPTER_CONFIG,
            ADAPTER_WEIGHTS,
            Checkpoint,
            find_model_name,
        )
        from emberge.tensor_files import PROVENANCE_KEY
        from emberge.tensor_names import PEFT_PREFIX
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        origin = describe_base(Checkpoint(checkpoint))
        with _silence_peft():
            state = get_peft_model_state_dict(self._tuner.model, save_embedding_layers=False)
        tensors = {
            f"{PEFT_PREFIX}{key}": value.contiguous() for key, value in sorted(state.items())
        }
        folder.mkdir(parents=True, exist_ok=True)
        # One entry alone, as safetensors writes several in an order of chance.
        save_file(tensors, folder / ADAPTER_WEIGHTS, {PROVENANCE_KEY: json.dumps(origin)})
        config = self._tuner.peft_config["default"].to_dict()
        config |= {
            "base_model_name_or_path": find_model_name(checkpoint),
            "inference_mode": True,
            "target_modules": self._targets,
        }
        text = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False, default=_to_json)
        (folder / ADAPTER_CONFIG).write_text(text + "\n", encoding="utf-8")


def _to_json(value: Any) -> Any:
    """Return a set of peft's config as a sorted list, and an enumeration as its value."""
    return sorted(value) if isinstance(value, set | frozenset) else value.value


@contextlib.contextmanager
def _silence_peft() -> Iterator[None]:
    """Suppress peft's warnings about settings that the options ask for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield

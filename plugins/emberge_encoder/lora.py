"""Low-rank adapters: a few trained numbers beside frozen weights."""

from __future__ import annotations

import contextlib
import copy
import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from emberge import CheckpointError, Count, NumberRange, Positive, WholeNumber, stable_seed, suggest

__all__ = ["Lora", "LoraTrunk"]

_OUTER = "base_model.model."


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank factors that are trained beside frozen weights: W + s · B A with a frozen W.

    Hu et al., 2021, arXiv:2106.09685. `rank` is that of the product; s is `alpha` / rank, by default 1, or
    alpha / √rank with `rslora` (Kalajdzievski, 2023, arXiv:2312.03732). `dora` trains the length of every row
    beside its direction (Liu et al., 2024, arXiv:2402.09353). `targets` are modules of the transformer by the
    end of their name, such as `query`; by default all linear layers of its blocks. `dropout` is that of A's
    input. B starts at zero and A at random, by `seed`.

    An adapter of the model that the training began from is saved, which a merge takes as it is; with `fold` a
    whole model, the product added to the weights.
    """

    rank: Count = 16
    alpha: Positive | None = None
    targets: tuple[str, ...] = ()
    dropout: Annotated[float, NumberRange(least=0, below=1)] = 0.0
    rslora: bool = False
    dora: bool = False
    seed: WholeNumber = 0
    fold: bool = False

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, not {self.rank}")
        if self.alpha is not None and self.alpha <= 0:
            raise ValueError(f"alpha must be above 0, not {self.alpha:g}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is a share from 0 to below 1, not {self.dropout:g}")

    def on(self, trunk: Any, source: Path) -> LoraTrunk:
        """Put factors into a transformer, whose own weights are frozen from here on.

        Raises:
            CheckpointError: for targets that it has not, or that take no factors.
        """
        import torch
        from peft import LoraConfig
        from peft.tuners.lora import LoraModel

        targets = self._targets(trunk, source)
        alpha = self.rank if self.alpha is None else self.alpha
        config = LoraConfig(
            task_type="FEATURE_EXTRACTION",
            r=self.rank,
            lora_alpha=alpha,
            target_modules=targets,
            lora_dropout=self.dropout,
            use_rslora=self.rslora,
            use_dora=self.dora,
            fan_in_fan_out=_transposed(trunk, targets),
        )
        with torch.random.fork_rng(), _silent():
            torch.manual_seed(stable_seed(self.seed, "lora"))
            try:
                tuner = LoraModel(trunk, {"default": config}, "default")
            except (ValueError, NotImplementedError) as error:
                raise CheckpointError(f"{source}: takes no adapter: {error}") from error
        for parameter in trunk.parameters():
            if parameter.requires_grad:  # small steps would be lost in half precision
                parameter.data = parameter.data.float()
        return LoraTrunk(self, tuner, targets, source)

    def _targets(self, trunk: Any, source: Path) -> list[str]:
        names = {module: name for name, module in trunk.named_modules()}
        if not self.targets:
            from emberge_encoder.blocks import blocks_of

            inside = (m for block in blocks_of(trunk) for m in block.modules() if _is_linear(m))
            return sorted(names[module] for module in inside)
        found: set[str] = set()
        for target in self.targets:
            mine = {n for n in names.values() if f".{n}".endswith(f".{target}")}
            if not mine:
                words = sorted({n.rpartition(".")[2] for m, n in names.items() if _is_linear(m)})
                close = suggest(target, words) or f"; it has {', '.join(words)}"
                raise CheckpointError(f"{source}: lora has no target '{target}'{close}")
            found |= mine
        return sorted(found)


class LoraTrunk:
    """A transformer with factors in it, of which an adapter or a whole model is saved."""

    def __init__(self, options: Lora, tuner: Any, targets: Sequence[str], source: Path) -> None:
        self.options = options
        self._tuner = tuner
        self._targets = list(targets)
        self._source = source

    def folded(self) -> Any:
        """Return the transformer without factors, their products added to its weights."""
        with _silent():
            return copy.deepcopy(self._tuner).merge_and_unload()

    def save(self, folder: Path, checkpoint: Path) -> None:
        """Write the adapter as peft reads it, with the model that it is for in the header."""
        from emberge.merging import adapter_origin
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        name, metadata = adapter_origin(checkpoint)
        with _silent():
            state = get_peft_model_state_dict(self._tuner.model, save_embedding_layers=False)
        tensors = {f"{_OUTER}{key}": value.contiguous() for key, value in sorted(state.items())}
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt", **metadata})
        config = self._tuner.peft_config["default"].to_dict()
        config |= {
            "base_model_name_or_path": name,
            "inference_mode": True,
            "target_modules": self._targets,
        }
        text = json.dumps(_plain(config), indent=2, sort_keys=True, ensure_ascii=False)
        (folder / "adapter_config.json").write_text(text + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        found = [_plain(one) for one in value]
        return sorted(found) if isinstance(value, set | frozenset) else found
    return getattr(value, "value", value)  # enumerations


def _is_linear(module: Any) -> bool:
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, nn.Linear | Conv1D)


def _transposed(trunk: Any, targets: Sequence[str]) -> bool:
    from transformers.pytorch_utils import Conv1D

    return any(isinstance(trunk.get_submodule(target), Conv1D) for target in targets)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Suppress peft's warnings of settings that were asked for, and of merging them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield

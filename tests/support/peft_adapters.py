"""Tiny adapters as peft trains and saves them: random numbers in every part, on a base of `tiny`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

IDS = range(5, 25)


def save_adapter(
    folder: Path,
    base: Path,
    *,
    seed: int = 0,
    model: type[Any] | None = None,
    name: str | None = None,
    **config: Any,
) -> Path:
    """Save an adapter with random factors on `base`, trained on its plain class or on `model`."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel

    torch.manual_seed(seed)
    settings = {"r": 4, "lora_alpha": 8, "target_modules": ["query", "value"], **config}
    with warnings.catch_warnings():  # on settings that a test asks for
        warnings.simplefilter("ignore")
        peft = get_peft_model((model or AutoModel).from_pretrained(base), LoraConfig(**settings))
        for key, parameter in peft.named_parameters():
            if parameter.requires_grad:
                scale = parameter.detach().std().nan_to_num(0.0).clamp(min=0.05)
                noise = 0.3 * scale * torch.randn_like(parameter)
                start = 1.0 if "magnitude" in key else 0.5 if "lora_" in key else 1.0
                parameter.data.mul_(start).add_(noise)
        peft.peft_config["default"].base_model_name_or_path = name or base.name
        peft.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    return folder


def adapted(base: Path, *adapters: Path, model: type[Any] | None = None) -> Any:
    """The base with an adapter on top as peft loads it, in evaluation mode, not merged."""
    from peft import PeftModel
    from transformers import AutoModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = (model or AutoModel).from_pretrained(base)
        return PeftModel.from_pretrained(plain, adapters[0]).eval()


def loaded(folder: Path) -> Any:
    """A whole model as transformers loads it, in evaluation mode."""
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder).eval()


def hidden(model: Any) -> Any:
    """The last states of a model, bare or with an adapter, of the tokens `IDS`."""
    import torch

    with torch.no_grad():
        return model(input_ids=torch.tensor([IDS])).last_hidden_state

"""Check of a loaded model's attention: whether its tokens read later ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

# Tokens of the probe: within reach of every window.
_LENGTH = 3


def reads_later_tokens(model: Any, vocabulary: int) -> bool:
    """Return whether the state of a text's first token depends on the tokens after it.

    One short text goes through the model once. If an output does not depend on an input, its derivative by
    that input is exactly zero in any precision. Comparing the outputs of two texts would not work, as experts
    round differently in different batches.
    """
    words: list[Tensor] = []
    # Not every class of a plugin names its embeddings of words.
    hooks = [
        module.register_forward_hook(lambda *values: words.append(values[-1]))
        for module in model.modules()
        if isinstance(module, nn.Embedding)
    ]
    training = model.training
    model.eval()
    try:
        with torch.enable_grad():
            ids = torch.arange(1, 1 + _LENGTH, device=next(model.parameters()).device)[None]
            ids = ids % vocabulary
            first = model(input_ids=ids, attention_mask=torch.ones_like(ids))[0][0, 0]
            # Not all alike: a norm's output has a constant sum.
            direction = torch.linspace(-1, 1, len(first), dtype=first.dtype, device=first.device)
            inputs = [states for states in words if states.shape[:2] == ids.shape]
            (gradient,) = torch.autograd.grad(first, inputs[0], direction)
    except RuntimeError:  # a recurrent class that changes its states in place
        return False
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return bool(gradient[0, 1:].ne(0).any())

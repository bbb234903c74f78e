"""Blocks of a loaded transformer, their inputs for losses on layers, and a check of its attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import torch
from emberge import CheckpointError
from torch import Tensor, nn

# Tokens of the probe of attention: within reach of every window.
_PROBE_LENGTH = 3


class BlockInputs:
    """Inputs of transformer blocks, recorded in a forward pass for losses on intermediate layers."""

    def __init__(self, trunk: Any, layers: Sequence[float]) -> None:
        self._blocks: Sequence[nn.Module] = list(find_blocks(trunk)) if layers else []
        self._wanted = {self._find_state_index(layer) for layer in layers}
        self._states: dict[int, Tensor] = {}
        self._hooks: list[Any] = []

    def _find_state_index(self, layer: float) -> int:
        count = len(self._blocks)
        return min(int(layer * (count + 1)), count)

    def __enter__(self) -> BlockInputs:
        for index in self._wanted - {len(self._blocks)}:
            self._hooks.append(
                self._blocks[index].register_forward_pre_hook(
                    lambda _, args, kwargs, index=index: self._store_state(index, args, kwargs),
                    with_kwargs=True,
                )
            )
        return self

    def _store_state(self, index: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._states[index] = args[0] if args else kwargs["hidden_states"]

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def find_state(self, layer: float, final: Tensor) -> Tensor:
        """Return hidden state number floor(layer · (L + 1)): 0 is the embeddings, L the final state."""
        return self._states.get(self._find_state_index(layer), final)


def find_blocks(trunk: Any) -> nn.ModuleList:
    """Return the blocks of a transformer's text stack, from first to last.

    A vision or audio tower may have as many blocks; its list is farther from the word embeddings in the
    module tree.

    Raises:
        CheckpointError: if the transformer does not keep its blocks in one list.
    """
    count = trunk.config.get_text_config().num_hidden_layers
    embeddings = trunk.get_input_embeddings()
    modules = dict(trunk.named_modules())
    words = next(name for name, module in modules.items() if module is embeddings)
    lists = {
        _count_shared_modules(name, words): module
        for name, module in reversed(modules.items())
        if isinstance(module, nn.ModuleList) and len(module) == count
    }
    if not lists:
        raise CheckpointError(f"{type(trunk).__name__}: its {count} layers were not found")
    return lists[max(lists)]


def _count_shared_modules(name: str, other: str) -> int:
    """Return the number of modules, apart from the root, that contain both."""
    pairs = zip(name.split("."), other.split("."), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def reads_later_tokens(model: Any, vocabulary: int) -> bool:
    """Return whether the state of a text's first token depends on the tokens after it.

    One short text goes through the model once. If an output does not depend on an input, its derivative by
    that input is exactly zero in any precision. Comparing the outputs of two texts would not work, as experts
    round differently in different batches.
    """
    embedding_outputs: list[Tensor] = []
    # Not every class of a plugin names its embeddings of words.
    hooks = [
        module.register_forward_hook(lambda *values: embedding_outputs.append(values[-1]))
        for module in model.modules()
        if isinstance(module, nn.Embedding)
    ]
    training = model.training
    model.eval()
    try:
        with torch.enable_grad():
            ids = torch.arange(1, 1 + _PROBE_LENGTH, device=next(model.parameters()).device)[None]
            ids = ids % vocabulary
            first = model(input_ids=ids, attention_mask=torch.ones_like(ids))[0][0, 0]
            # Not all alike: a norm's output has a constant sum.
            direction = torch.linspace(-1, 1, len(first), dtype=first.dtype, device=first.device)
            inputs = [states for states in embedding_outputs if states.shape[:2] == ids.shape]
            (gradient,) = torch.autograd.grad(first, inputs[0], direction)
    except RuntimeError:  # a recurrent class that changes its states in place
        return False
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return bool(gradient[0, 1:].ne(0).any())

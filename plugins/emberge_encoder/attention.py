"""Checks of a loaded model's attention: whether its modules read earlier and later tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from emberge.wording import join_some
from torch import Tensor, nn

# Length of the probe's text, and the place whose output is differentiated: within reach of every window.
_LENGTH, _MIDDLE = 5, 2


@dataclass(frozen=True, slots=True)
class Mixer:
    """A module that mixes tokens, as attention does, and reads earlier tokens, later tokens, or both."""

    name: str
    kind: str
    earlier: bool
    later: bool


def attention_problem(model: Any, mixers: Sequence[Mixer], *, bidirectional: bool) -> str:
    """Return the problem of token-mixing modules that do not attend as requested; "" if all do."""
    attention = f"attention: {'bidirectional' if bidirectional else 'causal'}"
    kind = type(model).__name__
    if not mixers:
        return f"no layer of {kind} was seen to read other tokens, so none obeys {attention}"
    unfit_mixers = [mixer for mixer in mixers if mixer.later != bidirectional]
    if not unfit_mixers:
        return ""
    if len(unfit_mixers) == len(mixers):
        return f"{kind} ignores {attention}"
    kinds = ", ".join(sorted({mixer.kind for mixer in unfit_mixers}))
    return (
        f"{kind} is a hybrid: {len(unfit_mixers)} of its {len(mixers)} layers that mix tokens ({kinds}) "
        "ignore "
        f"{attention}: {join_some([mixer.name for mixer in unfit_mixers])}"
    )


def find_mixers(model: Any, vocabulary: int) -> list[Mixer]:
    """Return the innermost modules of a model that mix tokens, deepest first.

    One short text goes through the model once. If the output for one token does not depend on another token's
    input, its derivative by that input is exactly zero in any precision. Comparing the outputs of two texts
    would not work, as experts round differently in different batches.
    """
    with _record_states(model) as calls, torch.enable_grad():
        ids = torch.arange(1, 1 + _LENGTH, device=next(model.parameters()).device)[None]
        ids = ids % vocabulary
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    mixers: list[Mixer] = []
    for name in sorted(calls, key=lambda name: len(name.split(".")) if name else 0, reverse=True):
        if any(not name or mixer.name.startswith(f"{name}.") for mixer in mixers):
            continue
        earlier, later = _find_reach(*calls[name])
        if earlier or later:
            kind = type(model.get_submodule(name)).__name__
            mixers.append(Mixer(name, kind, earlier, later))
    return mixers


@contextmanager
def _record_states(model: Any) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Record the input and output states of each module with submodules, at its first call."""
    calls: dict[str, tuple[Tensor, Tensor]] = {}
    words: list[Tensor] = []

    def make_hook(name: str) -> Any:
        def hook(_: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
            inputs = [*args, *kwargs.values()] if name else words  # the whole model is given ids
            outputs = [out] if isinstance(out, Tensor) else _list_values(out)
            pair = [next(filter(_is_states, values), None) for values in (inputs, outputs)]
            if name not in calls and pair[0] is not None and pair[1] is not None:
                calls[name] = pair[0], pair[1]

        return hook

    # Not every class of a plugin names its embeddings of words.
    hooks = [
        module.register_forward_hook(lambda *values: words.append(values[-1]))
        for module in model.modules()
        if isinstance(module, nn.Embedding)
    ]
    hooks += [
        module.register_forward_hook(make_hook(name), with_kwargs=True)
        for name, module in model.named_modules()
        if next(module.children(), None) is not None
    ]
    training = model.training
    model.eval()
    try:
        yield calls
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()


def _list_values(out: Any) -> list[Any]:
    """Return the values of a module's output, a mapping or a sequence."""
    return list(out.values() if isinstance(out, Mapping) else out) if out is not None else []


def _is_states(value: Any) -> bool:
    """Return whether a value has one state for each token of the text."""
    return isinstance(value, Tensor) and value.requires_grad and value.shape[:2] == (1, _LENGTH)


def _find_reach(inputs: Tensor, outputs: Tensor) -> tuple[bool, bool]:
    """Return whether the middle token's output depends on earlier tokens, and whether on later ones."""
    middle = outputs[0, _MIDDLE]
    # Not all alike: a norm's output has a constant sum.
    direction = torch.linspace(-1, 1, middle.numel(), dtype=middle.dtype, device=middle.device)
    try:
        (gradient,) = torch.autograd.grad(
            middle, inputs, direction.view_as(middle), retain_graph=True, allow_unused=True
        )
    except RuntimeError:  # a recurrent class that changes its states in place
        return False, False
    if gradient is None:
        return False, False
    is_read = gradient[0].flatten(1).ne(0).any(1)
    return bool(is_read[:_MIDDLE].any()), bool(is_read[_MIDDLE + 1 :].any())

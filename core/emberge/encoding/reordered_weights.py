"""Weights of linear layers in the order in which oneDNN multiplies fastest, for passes without gradients."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

# Beyond this many bytes of weights a second copy of them costs more memory than it is worth.
MOST_BYTES = 1 << 30


@dataclass(eq=False)
class ReorderedWeights:
    """Copies of the weights of a model's linear layers in oneDNN's order, built once and cached.

    For float32 on a CPU, oneDNN multiplies by a reordered matrix about a fifth faster. Results differ by
    rounding. If reordering would not help, the model runs unchanged.
    """

    module: nn.Module
    _kept: WeakKeyDictionary[nn.Linear, tuple[tuple[int, int], Tensor]] = field(
        default_factory=WeakKeyDictionary
    )

    @contextlib.contextmanager
    def use_reordered(self, rows: int) -> Iterator[None]:
        """Use reordered weights in linear layers in the `with` block, whose inputs usually have `rows` rows.

        This is only for passes without gradients.
        """
        linears = self._find_linears()
        try:
            for linear in linears:
                vars(linear)["forward"] = self._forward(linear, rows)
            yield
        finally:
            for linear in linears:
                vars(linear).pop("forward", None)

    def _find_linears(self) -> list[nn.Linear]:
        available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        if not available:
            return []
        linears = [m for m in self.module.modules() if type(m) is nn.Linear and _is_plain(m)]
        return linears if sum(m.weight.nbytes for m in linears) <= MOST_BYTES else []

    def _forward(self, linear: nn.Linear, rows: int) -> Callable[[Tensor], Tensor]:
        weight = linear.weight.detach()
        state = (weight.data_ptr(), linear.weight._version)
        reordered = self._kept.get(linear)
        if reordered is None or reordered[0] != state:  # the weights may have been trained since
            operators: Any = torch.ops.mkldnn
            reordered = self._kept[linear] = state, operators._reorder_linear_weight(weight, rows)
        return functools.partial(_multiply_reordered, weight=reordered[1], bias=linear.bias)


def _multiply_reordered(values: Tensor, *, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(values, weight, bias, "none", [], "")
    return product


def _is_plain(linear: nn.Linear) -> bool:
    """Return whether a layer has torch's original forward and ordinary float32 weights on the CPU."""
    weight = linear.weight
    return (
        "forward" not in vars(linear)
        and type(weight) is nn.Parameter
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
    )

"""Packed copies of linear weights, as the CPU's kernels read them, for passes that only embed."""

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
class PackedWeights:
    """Linear layers of a model with packed copies of their weights, built once and kept.

    Of float32 on a CPU, oneDNN multiplies by a packed matrix about a fifth faster than by one that it must
    read in PyTorch's layout (MiniLM's layers, 2,048 rows, one thread: 99 against 75 GFLOP/s). Results
    differ by rounding. Where there is nothing to gain, the model runs as it is.
    """

    module: nn.Module
    _kept: WeakKeyDictionary[nn.Linear, tuple[tuple[int, int], Tensor]] = field(
        default_factory=WeakKeyDictionary
    )

    @contextlib.contextmanager
    def used(self, rows: int) -> Iterator[None]:
        """Make the linear layers use packed weights inside; `rows` is the usual number of their input's rows.

        For passes without gradients alone.
        """
        swapped = self._linears()
        try:
            for linear in swapped:
                vars(linear)["forward"] = self._forward(linear, rows)
            yield
        finally:
            for linear in swapped:
                vars(linear).pop("forward", None)

    def _linears(self) -> list[nn.Linear]:
        available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        if not available or _is_compiled(self.module):
            return []
        found = [m for m in self.module.modules() if type(m) is nn.Linear and _is_plain(m)]
        return found if sum(m.weight.nbytes for m in found) <= MOST_BYTES else []

    def _forward(self, linear: nn.Linear, rows: int) -> Callable[[Tensor], Tensor]:
        weight = linear.weight.detach()
        state = (weight.data_ptr(), linear.weight._version)
        known = self._kept.get(linear)
        if known is None or known[0] != state:  # the weights may have been trained since
            operators: Any = torch.ops.mkldnn
            known = self._kept[linear] = state, operators._reorder_linear_weight(weight, rows)
        return functools.partial(_multiplied, weight=known[1], bias=linear.bias)


def _multiplied(values: Tensor, *, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(values, weight, bias, "none", [], "")
    return product


def _is_plain(linear: nn.Linear) -> bool:
    """Return whether the layer's forward is torch's own, on ordinary float32 weights of the CPU."""
    weight = linear.weight
    return (
        "forward" not in vars(linear)
        and type(weight) is nn.Parameter
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
    )


def _is_compiled(module: nn.Module) -> bool:
    return any(getattr(m, "_compiled_call_impl", None) is not None for m in module.modules())

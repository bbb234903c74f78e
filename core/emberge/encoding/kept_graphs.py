"""Graphs of chunks that are kept until their backward pass, as far as memory reaches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from emberge.encoding.activation_memory import saved_bytes

__all__ = ["KeptGraphs"]


class KeptGraphs:
    """Room for the activations of chunks: of `room` tokens, or as many as fit into `room_bytes`.

    With neither, all fit. The longest chunk must be the first.
    """

    def __init__(self, module: nn.Module, room: int | None, room_bytes: int | None) -> None:
        self._module, self._left = module, room
        self._bytes = room_bytes if room is None else None

    def has_room(self, tokens: int) -> bool:
        """Return whether a chunk of so many padded tokens can be kept."""
        return self._left is None or self._left >= tokens

    @contextlib.contextmanager
    def passing(self, tokens: int, keep: bool) -> Iterator[None]:
        """Run a chunk's forward pass inside: with a graph if that is kept, else without one."""
        with contextlib.ExitStack() as stack:
            if not keep:
                stack.enter_context(torch.no_grad())
            measured = self._bytes is not None
            counter = stack.enter_context(saved_bytes(self._module)) if measured else [0]
            yield
        if self._bytes is not None:
            # The first chunk is the longest, so none of the others needs more for a token.
            self._left = int(self._bytes / max(1, counter[0]) * tokens)
            self._bytes = None
        if keep and self._left is not None:
            self._left -= tokens

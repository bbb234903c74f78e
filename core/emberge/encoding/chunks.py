"""Chunks of texts of similar length under a token budget, and transfer of their features."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emberge.contracts import Encoder

# A chunk costs, in addition to its tokens, about as much as the budget divided by this, in tokens.
OVERHEAD_SHARE = 32
# Beyond this many texts lengths are so close that the best cuts are no better than full chunks.
TEXTS_WEIGHED = 4096


def choose_token_budget(device: str, *, training: bool) -> int:
    """Return a chunk's token budget, which only the kind of device decides, so results are reproducible."""
    if device.startswith("cpu"):
        return 2048  # what keeps a small model's activations near the cache; measured
    return 16384 if training else 65536


def cut_chunks(lengths: Sequence[int] | NDArray[np.int64], budget: int) -> list[NDArray[np.int64]]:
    """Cut texts into chunks whose padded size (texts × longest length) is at most `budget` tokens.

    The longest texts are first, so that a device that lacks memory fails at the first chunk; texts of equal
    length keep their order. The cuts minimise the padding and the chunks' own overhead. A text longer than
    the budget is a chunk of its own.
    """
    sizes = np.maximum(np.asarray(lengths, dtype=np.int64), 1)
    order = np.argsort(-sizes, kind="stable")
    descending_lengths = sizes[order]
    can_optimise = len(order) <= TEXTS_WEIGHED
    starts = (
        _find_best_starts(descending_lengths, budget)
        if can_optimise
        else _find_full_starts(descending_lengths, budget)
    )
    return [order[a:b] for a, b in pairwise([*starts, len(order)])]


def _find_full_starts(descending_lengths: NDArray[np.int64], budget: int) -> list[int]:
    starts, start = [], 0
    while start < len(descending_lengths):
        starts.append(start)
        start += max(1, budget // int(descending_lengths[start]))
    return starts


def _find_best_starts(descending_lengths: NDArray[np.int64], budget: int) -> list[int]:
    """Return the starts of the cheapest chunks, by dynamic programming over prefixes."""
    count, overhead = len(descending_lengths), budget // OVERHEAD_SHARE
    cost = np.full(count + 1, np.iinfo(np.int64).max // 2, np.int64)
    cost[0] = 0
    best_start = np.zeros(count + 1, np.int64)
    for start in range(count):
        longest = int(descending_lengths[start])
        rows = np.arange(1, min(count - start, max(1, budget // longest)) + 1)
        cost_from_start = cost[start] + overhead + longest * rows
        ends = slice(start + 1, start + 1 + len(rows))
        is_cheaper = cost_from_start < cost[ends]
        cost[ends][is_cheaper] = cost_from_start[is_cheaper]
        best_start[ends][is_cheaper] = start
    starts, end = [], count
    while end > 0:
        end = int(best_start[end])
        starts.append(end)
    return starts[::-1]


def count_padded_tokens(lengths: NDArray[np.int64], pieces: Sequence[NDArray[np.int64]]) -> int:
    """Return the number of tokens in these chunks, padding included."""
    return sum(len(piece) * int(lengths[piece].max()) for piece in pieces if len(piece))


Features = Mapping[str, Tensor]


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on the device; a copy to a GPU is asynchronous."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        # A copy from ordinary memory would wait for all work that the GPU has.
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass(eq=False)
class ChunkFeatures:
    """The features of chunks of `texts`; a `worker` prepares the next chunk in advance.

    `collate` makes features from texts or, if the items of `texts` are packed rows, from rows of several
    texts.
    """

    encoder: Encoder
    texts: Sequence[Any]
    pieces: Sequence[NDArray[np.int64]]
    device: torch.device
    collate: Callable[[Sequence[Any]], Features]
    worker: ThreadPoolExecutor | None = None
    _ahead: tuple[int, Future[Features]] | None = None

    def __getitem__(self, index: int) -> Features:
        """Return the features of a chunk on the device, and begin to prepare the next chunk."""
        ahead, self._ahead = self._ahead, None
        features = ahead[1].result() if ahead and ahead[0] == index else self._collate_chunk(index)
        if self.worker is not None and index + 1 < len(self.pieces):
            self._ahead = index + 1, self.worker.submit(self._collate_chunk, index + 1)
        return {name: value.to(self.device, non_blocking=True) for name, value in features.items()}

    def _collate_chunk(self, index: int) -> Features:
        features = self.collate([self.texts[i] for i in self.pieces[index]])
        if self.device.type != "cuda":
            return features
        return {name: value.pin_memory() for name, value in features.items()}


def find_device(encoder: Encoder) -> torch.device:
    """Return the device of an encoder's weights."""
    return next(encoder.module.parameters()).device


@contextlib.contextmanager
def prefetch_chunks(
    encoder: Encoder,
    texts: Sequence[Any],
    pieces: Sequence[NDArray[np.int64]],
    *,
    ahead: bool | None = None,
    collate: Callable[[Sequence[Any]], Features] | None = None,
) -> Iterator[ChunkFeatures]:
    """Yield the chunks' features on the encoder's device; with `ahead` a thread prepares them.

    The default for `ahead` is True on a GPU, and for texts with media, whose files are read and decoded, if
    there is a second core. `collate` is by default the encoder's.
    """
    device = find_device(encoder)
    if ahead is None:
        ahead = device.type == "cuda" or (
            (os.cpu_count() or 1) > 1 and any(getattr(text, "media", ()) for text in texts)
        )
    collate = encoder.collate if collate is None else collate
    if not ahead:  # on a CPU it would only take the model's own time
        yield ChunkFeatures(encoder, texts, pieces, device, collate)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="feed") as worker:
        yield ChunkFeatures(encoder, texts, pieces, device, collate, worker)

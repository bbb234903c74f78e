"""Features of chunks on their way to a device: from pinned memory, prepared while it computes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emberge.contracts import Encoder

Features = Mapping[str, Tensor]


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on the device; a copy to a GPU is queued there and not waited for."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        # A copy from ordinary memory would wait until the GPU has done all that it was given.
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass(eq=False)
class Feed:
    """Features of chunks of `texts`; with a `worker` those of the next chunk are prepared meanwhile.

    `collate` makes features of texts, or of rows of several texts where `texts` are such.
    """

    encoder: Encoder
    texts: Sequence[Any]
    pieces: Sequence[NDArray[np.int64]]
    device: torch.device
    collate: Callable[[Sequence[Any]], Features]
    worker: ThreadPoolExecutor | None = None
    _ahead: tuple[int, Future[Features]] | None = None

    def __getitem__(self, index: int) -> Features:
        """Return the features of a chunk on the device."""
        ahead, self._ahead = self._ahead, None
        made = ahead[1].result() if ahead and ahead[0] == index else self._made(index)
        if self.worker is not None and index + 1 < len(self.pieces):
            self._ahead = index + 1, self.worker.submit(self._made, index + 1)
        return {name: value.to(self.device, non_blocking=True) for name, value in made.items()}

    def _made(self, index: int) -> Features:
        features = self.collate([self.texts[i] for i in self.pieces[index]])
        if self.device.type != "cuda":
            return features
        return {name: value.pin_memory() for name, value in features.items()}


@contextlib.contextmanager
def feed(
    encoder: Encoder,
    texts: Sequence[Any],
    pieces: Sequence[NDArray[np.int64]],
    *,
    ahead: bool | None = None,
    collate: Callable[[Sequence[Any]], Features] | None = None,
) -> Iterator[Feed]:
    """Yield a feed for the encoder's device; with `ahead` a thread prepares chunks.

    By default it does on a GPU, and where texts have media, whose files are read and decoded, if there is a
    second core. `collate` is by default the encoder's own, of texts.
    """
    device = next(encoder.module.parameters()).device
    if ahead is None:
        ahead = device.type == "cuda" or (
            (os.cpu_count() or 1) > 1 and any(getattr(text, "media", ()) for text in texts)
        )
    collate = encoder.collate if collate is None else collate
    if not ahead:  # on a CPU it would only take the model's own time
        yield Feed(encoder, texts, pieces, device, collate)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="feed") as worker:
        yield Feed(encoder, texts, pieces, device, collate, worker)

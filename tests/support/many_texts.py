"""Vectors of many texts, embedded and then read in batches: `python many_texts.py STORE COUNT`.

Prints the bytes of anonymous memory (RssAnon) that this took at its peak beside what the imports take.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from emberge.contracts import Embedded, TokenisedText
from emberge.encoding import Ragged
from emberge.testing import LetterEncoder
from emberge_encoder import EmbeddingStore
from torch import Tensor

WIDTH = 384


class WideEncoder(LetterEncoder):
    """Vectors of 384 numbers, that of a text its first token in all places."""

    def __init__(self) -> None:
        super().__init__()
        self.dimension = WIDTH

    def forward(self, features: Mapping[str, Tensor], layers: Sequence[float] = ()) -> Embedded:
        """Return the first token's number, as often as there are dimensions."""
        return Embedded(features["input_ids"][:, :1].float().expand(-1, WIDTH))


def anonymous() -> int:
    """Return this process's anonymous memory, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def texts(count: int) -> Ragged:
    """Return different texts of four tokens."""
    numbers = np.arange(count)
    ids = np.stack([numbers // 62**k % 62 + 1 for k in range(4)], axis=1).astype(np.int32)
    return Ragged(ids.ravel(), np.arange(count + 1) * 4, np.zeros(count, np.int32))


def main(store: Path, count: int) -> None:
    """Embed the texts, read 1,000 batches, and print the memory."""
    some: Sequence[TokenisedText] | Ragged = texts(count)
    torch.zeros(1).sum()
    peak, before, ended = [0], anonymous(), threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            peak[0] = max(peak[0], anonymous())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    vectors = EmbeddingStore(store, WideEncoder(), model="wide").embed_tokens(some)
    draw = np.random.default_rng(0)
    for _ in range(1000):
        places = draw.integers(count, size=64)
        assert (vectors[places][:, -1] == places % 62 + 1).all()
    ended.set()
    watcher.join()
    print(peak[0] - before)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

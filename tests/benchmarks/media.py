"""Images and clips on their way to a tiny model, beside the model alone on ready tensors.

OMP_NUM_THREADS=1 python -m pytest -m benchmark -s tests/benchmarks/media.py

A tiny omni encoder (four text layers of width 32, towers of one and two layers) is trained on batches of
media that it has not seen: drawn images of 64 x 64 pixels, 66 tokens each, and tones of two seconds, 28
tokens. Through emberge a batch is read from files, decoded and made into patches or log-mel frames chunk by
chunk, in a thread beside the model; alone the same passes get tensors that are ready. The better of
alternating rounds, in wall seconds, by which the rate goes, and in CPU seconds of both threads together.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import TokenisedText, join_parts
from emberge.encoding import BatchEmbeddings, EncodePlan, encode_and_backward
from emberge.media import MediaFolder
from emberge_encoder import TextEncoder
from torch import Tensor

from tests.support.media_models import RATE, drawing, media_model, tone

BATCH, ROUNDS, WANTED = 64, 5, 0.7


class Ready:
    """The encoder with the features of a batch's chunks made before."""

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder
        self._made: dict[tuple[Any, ...], Mapping[str, Tensor]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def __call__(self, *given: Any) -> Any:
        return self._encoder(*given)

    def collate(self, texts: Sequence[TokenisedText]) -> Mapping[str, Tensor]:
        key = tuple(text.media for text in texts)
        if key not in self._made:
            self._made[key] = self._encoder.collate(texts)
        return self._made[key]


def objective(encoded: BatchEmbeddings) -> Tensor:
    """Each embedding apart from the others."""
    scores = encoded.embeddings @ encoded.embeddings.T / 0.05
    return torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)))


def seconds(encoder: Any, texts: Sequence[TokenisedText]) -> tuple[float, float]:
    """Wall and CPU seconds of a training pass."""
    start = time.perf_counter(), time.process_time()
    encode_and_backward(encoder, texts, objective, EncodePlan(256, dropout=False), seed=0)
    return time.perf_counter() - start[0], time.process_time() - start[1]


@pytest.mark.benchmark
@pytest.mark.parametrize("kind", ["image", "audio"])
def test_media_reach_the_model(kind: str, tmp_path: Path) -> None:
    path = media_model(tmp_path / "model", "qwen3_omni_moe_thinker", layers=4)
    encoder = TextEncoder().load(path, device="cpu", dtype="float32")
    folder = MediaFolder(tmp_path / "media")
    fed, alone = [], []
    for number in range(ROUNDS + 1):
        places = range(number * BATCH, (number + 1) * BATCH)
        media = [
            folder.add_image(drawing(place, width=64, height=64))
            if kind == "image"
            else folder.add_clip(tone(200 + place, 2.0), RATE)
            for place in places
        ]
        texts = encoder.tokenise([join_parts([one]) for one in media], prompt="", max_length=None)
        fed.append(seconds(encoder, texts))
        ready: Any = Ready(encoder)
        seconds(ready, texts)
        alone.append(seconds(ready, texts))
    # The first round imports and sets up.
    ratios = []
    for place, word in enumerate(("wall", "CPU")):
        own, model = (min(one[place] for one in rounds[1:]) for rounds in (fed, alone))
        ratios.append(model / own)
        print(
            f"\n{kind}, {word}: {BATCH / own:.0f} a second through emberge, {BATCH / model:.0f} by the model "
            f"alone: {model / own:.2f}"
        )
    assert max(ratios) >= WANTED

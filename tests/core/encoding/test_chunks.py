"""Features of chunks are the same whoever makes them and whenever."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import Encoder, TokenisedText
from emberge.encoding import to_device
from emberge.encoding.chunks import cut_chunks, prefetch_chunks
from emberge_encoder import TextEncoder

from tests.support.tiny import WORDS

TEXTS = [" ".join(WORDS[i : i + 1 + i % 7]) for i in range(30)]


class _Watched:
    """An encoder that remembers in which threads it collated."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.threads: list[str] = []

    def collate(self, texts: Sequence[TokenisedText]) -> Mapping[str, torch.Tensor]:
        if len(texts) == 1 and not texts[0].ids:
            raise KeyError("nothing")
        self.threads.append(threading.current_thread().name)
        return self._encoder.collate(texts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)


@pytest.fixture(scope="module")
def watched(bert: Path) -> _Watched:
    return _Watched(TextEncoder().load(bert, device="cpu", dtype="float32"))


def _tokens(watched: _Watched) -> list[TokenisedText]:
    return list(watched.tokenise(TEXTS, prompt="", max_length=None))


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [0, 0, 2, 1, 3]], ids=str)
def test_what_is_made_ahead_is_what_is_asked_for(watched: _Watched, order: list[int]) -> None:
    tokens = _tokens(watched)
    pieces = cut_chunks([len(t.ids) for t in tokens], 64)
    with (
        prefetch_chunks(watched, tokens, pieces, ahead=True) as ahead,
        prefetch_chunks(watched, tokens, pieces) as plain,
    ):
        for index in order:
            mine, expected = ahead[index], plain[index]
            assert mine.keys() == expected.keys()
            assert all(torch.equal(mine[name], expected[name]) for name in mine)


def test_the_next_chunk_is_made_beside_the_one_that_runs(watched: _Watched) -> None:
    tokens = _tokens(watched)
    pieces = cut_chunks([len(t.ids) for t in tokens], 64)
    watched.threads.clear()
    with prefetch_chunks(watched, tokens, pieces, ahead=True) as given:
        for index in range(len(pieces)):
            _ = given[index]
    assert sum(name.startswith("feed") for name in watched.threads) == len(pieces) - 1
    assert len(watched.threads) == len(pieces)
    assert not any(thread.name.startswith("feed") for thread in threading.enumerate())


def test_a_fault_in_what_is_made_ahead_is_told(watched: _Watched) -> None:
    tokens = [*_tokens(watched)[:2], TokenisedText([], 0)]
    pieces = [np.asarray([0, 1]), np.asarray([2])]
    with prefetch_chunks(watched, tokens, pieces, ahead=True) as given:
        assert given[0]
        with pytest.raises(KeyError, match="nothing"):
            given[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nobody_waits_for_what_a_gpu_is_given(bert: Path) -> None:
    encoder = TextEncoder().load(bert, device="cuda:0", dtype="float32")
    tokens = encoder.tokenise(TEXTS, prompt="", max_length=None)
    pieces = cut_chunks([len(t.ids) for t in tokens], 64)
    torch.cuda.set_sync_debug_mode("error")
    try:
        with prefetch_chunks(encoder, tokens, pieces) as given:
            found = [given[index]["input_ids"] for index in range(len(pieces))]
        scores = to_device(torch.arange(3.0), torch.device("cuda:0"))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert scores.tolist() == [0.0, 1.0, 2.0]
    assert all(ids.device.type == "cuda" for ids in found)

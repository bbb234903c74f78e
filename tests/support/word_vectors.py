"""An encoder that adds up vectors of words: trained in earnest, in a millisecond a step."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from emberge import Backbone, Similarity, TokenisedText
from emberge.contracts import Embedded
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

WORDS, WIDTH = 64, 8


def word_vectors(folder: Path, seed: int = 0) -> Path:
    """Write a checkpoint of random vectors, and return its folder."""
    folder.mkdir(parents=True)
    drawn = torch.randn(WORDS, WIDTH, generator=torch.Generator().manual_seed(seed))
    save_file({"words": drawn}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "words"}))
    return folder


class _Encoder:
    """An Encoder of one table of vectors."""

    dimension = WIDTH
    similarity = Similarity()
    tokenizer_fingerprint = "crc32"
    prompts: Mapping[str, str] = {}

    def __init__(self, words: Tensor) -> None:
        self.module = nn.ParameterDict({"words": nn.Parameter(words)})

    def tokenise(
        self, texts: Sequence[str], *, prompt: str, max_length: int | None
    ) -> list[TokenisedText]:
        return [
            TokenisedText([zlib.crc32(word.encode()) % WORDS for word in text.split()])
            for text in texts
        ]

    def collate(self, texts: Sequence[TokenisedText]) -> Mapping[str, Tensor]:
        ids = [torch.tensor(list(text.ids)) for text in texts]
        return {"input_ids": nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-1)}

    def __call__(self, features: Mapping[str, Tensor], layers: Sequence[float] = ()) -> Embedded:
        ids = features["input_ids"]
        there = (ids >= 0).unsqueeze(-1)
        return Embedded((self.module["words"][ids.clamp(min=0)] * there).sum(1))

    def stored_names(self) -> Mapping[str, str]:
        return {"words": "words"}

    def save(self, folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps({"model_type": "words"}))
        save_file({"words": self.module["words"].detach()}, folder / "model.safetensors")


@dataclass(frozen=True, kw_only=True)
class WordVectors(Backbone):
    """Add up vectors of words."""

    def load(
        self, checkpoint: Path, *, device: str, dtype: str, predicts: bool = False
    ) -> _Encoder:
        return _Encoder(load_file(checkpoint / "model.safetensors")["words"])

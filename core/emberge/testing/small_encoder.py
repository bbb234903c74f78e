"""Encoder small enough for checks of laws: the mean of letters' learned vectors, with dropout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from emberge.contracts import Embedded, TokenisedText

WIDTH = 8


class LetterEncoder(nn.Module):
    """Encoder with a vector for each letter; a text's embedding is the mean of its letters' vectors."""

    dimension = WIDTH
    tokenizer_fingerprint = "words"
    prompts: Mapping[str, str] = {}

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.words = nn.Embedding(64, WIDTH, padding_idx=0)
        with torch.no_grad():
            self.words.weight[1:] = torch.randn(63, WIDTH, generator=generator)  # 0 is padding
        self.dropout = nn.Dropout(0.2)

    @property
    def module(self) -> nn.Module:
        """Module with all weights."""
        return self

    def tokenise(
        self, texts: Sequence[str], *, prompt: str, max_length: int | None
    ) -> list[TokenisedText]:
        """Return, for each text, the number of every letter."""
        return [TokenisedText([1 + ord(c) % 63 for c in prompt + t][:max_length]) for t in texts]

    def collate(self, texts: Sequence[TokenisedText]) -> Mapping[str, Tensor]:
        """Return ids with zeros at the end of shorter texts."""
        longest = max(len(t.ids) for t in texts)
        return {"input_ids": torch.tensor([[*t.ids] + [0] * (longest - len(t.ids)) for t in texts])}

    def forward(self, features: Mapping[str, Tensor], layers: Sequence[float] = ()) -> Embedded:
        """Return the mean of each text's vectors, and the result of `layer` for each layer."""
        ids = features["input_ids"]
        states = self.words(ids)
        # Dropout of whole embeddings' entries: its pattern must not depend on the padding.
        count = (ids > 0).sum(1, keepdim=True)
        pooled = self.dropout(states.sum(1) / count)
        return Embedded(pooled, {layer: self.layer(pooled, layer) for layer in layers})

    def stored_names(self) -> Mapping[str, str]:
        """Return the names of the weights, which are stored under unchanged names."""
        return {name: name for name, _ in self.named_parameters()}

    @staticmethod
    def layer(pooled: Tensor, layer: float) -> Tensor:
        """Return the embeddings of an intermediate layer."""
        return pooled.roll(1, dims=-1) + layer

    def save(self, folder: Path) -> None:
        """Write the vectors."""
        torch.save(self.state_dict(), folder / "words.pt")

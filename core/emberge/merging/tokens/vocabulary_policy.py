"""Policy for the rows of embeddings where models' tokenizers differ."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from emberge.contracts import NumberRange

__all__ = ["VocabularyPolicy"]


@dataclass(frozen=True, kw_only=True)
class VocabularyPolicy:
    """The way to match rows of embeddings and language heads where models' tokenizers differ.

    `token_aware` keeps every id where it is: rows whose token is the same in all models are merged, a
    token that some lack takes its row from those that have it (one model's is copied), and two tokens
    on one id are refused. `union` goes by the tokens' text and appends those that the first model lacks;
    it needs one algorithm. `mean` merges rows by their number, whatever they mean.
    """

    policy: Literal["token_aware", "mean", "union"] = "token_aware"
    """The rule by which rows are matched."""
    keep: dict[str, str] = field(default_factory=dict)
    """Token to the model whose row and meaning it takes, where models clash: `{"[MASK]": text}`."""
    pad_to: Annotated[int, NumberRange(least=1, most=2**20)] = 64
    """A multiple that the rows of a union are padded to."""

    def __post_init__(self) -> None:
        if self.pad_to < 1:
            raise ValueError(f"pad_to must be at least 1, not {self.pad_to}")

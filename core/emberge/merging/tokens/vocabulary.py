"""The policy that decides the vocabulary of a merge of models whose tokenizers differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from emberge.contracts import NumberRange


@dataclass(frozen=True, kw_only=True)
class VocabularyPolicy:
    """A policy for matching rows of embeddings and heads of models whose tokenizers differ.

    `token_aware` changes no id: rows whose token is the same in all models are merged, the row of a token
    that some models lack is the weighted mean of the other models' rows (or the only model's row), and two
    tokens with one id are refused. `union` matches rows by the tokens' text and appends tokens that the first
    model lacks; all tokenizers must use one algorithm.
    """

    policy: Literal["token_aware", "union"] = "token_aware"
    """The rule by which rows are matched."""
    pad_to: Annotated[int, NumberRange(least=1, most=2**20)] = 64
    """The number of rows of a union is padded to a multiple of this."""

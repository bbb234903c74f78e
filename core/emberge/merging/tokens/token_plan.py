"""A plan of how the tokens of different tokenizers are matched; loads no torch."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

from emberge.errors import Problem
from emberge.merging.tokens.tokenizer import Tokenizer

__all__ = ["NOWHERE", "NewToken", "TokenModel", "TokenPlan"]

NOWHERE = -1
"""The row of a token that a model lacks."""


@dataclass(frozen=True)
class NewToken:
    """A token that the result's tokenizer gets from a model's; `id` is its id in the result."""

    text: str
    id: int
    owner: Tokenizer


@dataclass(frozen=True)
class TokenPlan:
    """The rows of every model's embedding that become the rows of the result's.

    `rows` is the number of rows in the result, None for the template's own; `maps` has for every model and
    the base its own row for each row of the result, -1 where it has none, and is empty where all rows stay;
    `pattern` is the template's map. `chosen` is the tokenizer that the result gets, with the tokens `new`
    inserted. `lines` describe the differences for the terminal.
    """

    chosen: Tokenizer | None = None
    rows: int | None = None
    maps: Mapping[str, array[int]] = field(default_factory=dict)
    pattern: array[int] | None = None
    new: tuple[NewToken, ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A hash of rows and new tokens: plans of equal digest give equal bytes."""
        facts = hashlib.sha256(repr((self.rows, [(t.text, t.id) for t in self.new])).encode())
        for name in sorted(self.maps):
            facts.update(name.encode() + b"\x00" + self.maps[name].tobytes())
        return facts.hexdigest()


@dataclass(frozen=True)
class TokenModel:
    """A model's tokenizer and the number of rows of its embedding, each None where it is not known."""

    name: str
    tokens: Tokenizer | None
    rows: int | None

    def has(self, token: str, place: int) -> bool:
        """Return whether id `place` is this token in the model, with a row of the embedding for it."""
        found = self.tokens is None or self.tokens.texts.get(place) == token
        return found and (self.rows is None or place < self.rows)

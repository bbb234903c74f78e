"""Merges of a BPE tokenizer: those that build a token, and the tokens on the way to it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence


class MergeTable:
    """The merges of a BPE tokenizer, which build tokens from characters."""

    def __init__(self, merges: Sequence[tuple[str, str]]) -> None:
        # Of a merge that is listed twice, the last rank counts, as in the tokenizers library.
        self._ranks: Mapping[tuple[str, str], int] = {pair: i for i, pair in enumerate(merges)}

    def build(self, token: str) -> Sequence[tuple[str, str]]:
        """Return the merges that build a token from its characters, in order; none if they do not."""
        parts, applied = list(token), []
        while len(parts) > 1:
            pairs = list(itertools.pairwise(parts))
            place = min(
                range(len(pairs)), key=lambda i: self._ranks.get(pairs[i], len(self._ranks))
            )
            if pairs[place] not in self._ranks:
                return ()
            applied.append(pairs[place])
            parts[place : place + 2] = ["".join(pairs[place])]
        return applied

    def list_merges(self, tokens: Iterable[str]) -> frozenset[tuple[str, str]]:
        """Return all merges that build these tokens."""
        return frozenset(pair for token in tokens for pair in self.build(token))

    def list_parts(self, tokens: Iterable[str]) -> frozenset[str]:
        """Return all tokens on the way from characters to these tokens."""
        merges = self.list_merges(tokens)
        return frozenset(part for pair in merges for part in (*pair, "".join(pair)))
